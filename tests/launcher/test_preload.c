#include "tests/support/suite.h"

#include "common/mem.h"
#include "launcher/plugins/preload/preload.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* --- accepted commands --- */

static const struct {
    const char *name, *content; /* of the program */
    const char *args;
    const char *why; /* NULL: accepted */
} commands[] = {
    {"python", "\177ELF", "t.py", NULL},
    {"python3", "\177ELF", "-u t.py -E", NULL},
    {"python3.11", "\177ELF", "-m mod", NULL},
    {"python3.13t", "\177ELF", "-c pass", NULL},
    {"python3", "\177ELF", "-uO -X dev -Xutf8 -W error -Wd -B t.py", NULL},
    {"python3", "\177ELF", "-", NULL},
    {"python3", "\177ELF", "-um mod", NULL},
    {"python3", "\177ELF", "", "no script"},
    {"python3", "\177ELF", "-u", "no script"},
    {"python3", "\177ELF", "-X", "the interpreter's option 'X'"},
    {"python3", "\177ELF", "-E t.py", "the interpreter's option '-E'"},
    {"python3", "\177ELF", "-X dev -uI t.py", "the interpreter's option '-uI'"},
    {"python3", "\177ELF", "-S t.py", "the interpreter's option '-S'"},
    {"python3", "\177ELF", "--version", "the interpreter's option '--version'"},
    {"python3-config", "\177ELF", "t.py", "is not a Python"},
    {"pythonx", "\177ELF", "t.py", "is not a Python"},
    {"train", "\177ELF", "t.py", "is not a Python"},
    {"python3", "#!/bin/sh\n", "t.py", "is not a Python script"},
    {"shims/python3", "#!/usr/bin/env bash\n", "-u t.py", NULL},
    {"shims/python3", "#!/usr/bin/env bash\n", "-E t.py",
     "the interpreter's option '-E'"},
    {"shims/pip", "#!/usr/bin/env bash\n", "-u t.py", "is not a Python script"},
    {"train", "#!/usr/bin/python3\n", "", NULL},
    {"train", "#! /usr/bin/env python3.11\n", "-E", NULL},
    {"train", "#!/usr/bin/python3 -E\n", "", "an option '-E'"},
    {"train", "#!/usr/bin/env -S python3 -u\n", "", "is not a Python script"},
    {"train", "#!", "", "is not a Python script"},
};

LOOP_TEST(only_known_interpreters_are_accepted, ARRAY_LEN(commands))
{
    char *folder = temp_dir();
    char *path = xasprintf("%s/%s", folder, commands[_i].name);
    char *shims = xasprintf("%s/shims", folder);
    ck_assert_int_eq(mkdir(shims, 0700), 0);
    free(shims);
    put_file(path, commands[_i].content);
    char *copy = xstrdup(commands[_i].args), *argv[16] = {path};
    int argc = 1;
    for (char *w = strtok(copy, " "); w; w = strtok(NULL, " "))
        argv[argc++] = w;
    struct ddp_err why = {""};
    struct preload_script script;
    int rc = preload_fits(path, argv, &script, &why);
    ck_assert_msg(rc == (commands[_i].why ? -1 : 0), "%s: %s", commands[_i].args,
                  why.text);
    if (commands[_i].why)
        ck_assert_msg(strstr(why.text, commands[_i].why), "%s", why.text);
    free(folder);
    free(path);
    free(copy);
}

TEST(missing_programs_are_not_accepted)
{
    struct ddp_err why = {""};
    char *argv[] = {(char[]){"python3"}, NULL};
    struct preload_script script;
    ck_assert_int_eq(preload_fits("/nowhere/python3", argv, &script, &why), -1);
    ck_assert_ptr_nonnull(strstr(why.text, "/nowhere/python3"));
}

/* --- what needs no interpreter to be seen --- */

static const struct {
    const char *text; /* of the script */
    bool none;        /* it imports nothing that may require torch */
} scripts[] = {
    {"import os, sys as s\nprint('x')\n", true},
    {"", false}, /* a folder, perhaps */
    {"#!/usr/bin/python3\nfrom numpy.random import rand\n  import json; x = 1\n", true},
    {"import os\r\nfrom  pathlib import Path\r\n", true},
    {"import torch\n", false},
    {"import os, torch\n", false},
    {"import os\nprint('torch')\n", false},
    {"import mine\n", false},
    {"import os, mine\n", false},
    {"import os as o, mine.part as m\n", false},
    {"from . import os\n", false},
    {"if 1:\n\tfrom mine import os\n", false},
    {"import ossaudiodev\n", false},
    {"import o\n", false},
    {"import numpy", true},
    {"import\n", false},
    {"import sys; import mine; mine.main()", false},
    {"import os; from mine import x\n", false},
    {"from os import path; import mine\n", false},
    {"try: import mine\nexcept ImportError: pass\n", false},
    {"if 1: from mine import x\n", false},
    {"import\tmine\n", false},
    {"from\tmine import x\n", false},
    {"from.mine import x\n", false},
    {"import os\r\fimport mine\n", false},
    {"\xef\xbb\xbfimport mine\n", false},
    {"import os as o \\\n, mine\n", false},
    {"import os\n# important: reimport imports 'import_module'\n", true},
    {"\timport\tos, sys as s\nfrom\tre\timport(A)\nfrom os.path import *\n", true},
    {"from\nimport ", false},
};

/* Of a program that is a script itself, or of a Python. */
static int text_fits(char *const *argv, struct ddp_err *why)
{
    struct preload_script script = {0};
    bool itself = !argv[1];
    ck_assert(itself || preload_fits(argv[0], argv, &script, why) == 0);
    return preload_script_fits(argv[0], argv, &script, why);
}

LOOP_TEST(scripts_without_torch_are_known_by_their_text, ARRAY_LEN(scripts))
{
    char *folder = temp_dir();
    char *script = xasprintf("%s/t.py", folder);
    put_file(script, scripts[_i].text);
    struct ddp_err why = {""};
    int wanted = scripts[_i].none ? -1 : 0;
    char *python = xasprintf("%s/python3", folder);
    put_file(python, "\177ELF");
    char u[] = "-u", x[] = "-X", uc[] = "-uc", m[] = "-m";
    char more[] = "import mine", *text = xstrdup(scripts[_i].text);
    char *file[] = {python, u, x, more, script, more, NULL}, *own[] = {script, NULL};
    char *command[] = {python, uc, text, more, NULL}, *module[] = {python, m, text, NULL};
    ck_assert_int_eq(text_fits(file, &why), wanted);
    ck_assert_int_eq(text_fits(own, &why), wanted);
    ck_assert_int_eq(text_fits(command, &why), wanted || !*text ? -1 : 0);
    ck_assert_int_eq(text_fits(module, &why), 0);
    free(text);
    free(python);
    free(folder);
    free(script);
}

TEST(pipes_are_not_read)
{
    char *folder = temp_dir();
    char *pipe = xasprintf("%s/pipe", folder);
    ck_assert_int_eq(mkfifo(pipe, 0600), 0);
    struct ddp_err why = {""};
    char *python = xasprintf("%s/python3", folder), *argv[] = {python, pipe, NULL};
    put_file(python, "\177ELF");
    ck_assert_int_eq(text_fits(argv, &why), -1);
    ck_assert_ptr_nonnull(strstr(why.text, "is not a regular file"));
    ck_assert_int_eq(preload_known(pipe, &why), 0);
    free(python);
    free(folder);
    free(pipe);
}

/* --- variables that ranks have in common --- */

static const struct {
    const char *envs[3]; /* entries separated by blanks */
    const char *common, *apart;
    const char *why; /* NULL: fine */
} worlds[] = {
    {{"A=1 RANK=0 B=2", "A=1 RANK=1 B=2", "A=1 RANK=2 B=2"}, "A=1 B=2", "RANK", NULL},
    {{"A=1", "A=1", "A=1"}, "A=1", "", NULL},
    {{"A=1", "A=1 LATE=3", "A=1 LATE=3"}, "A=1", "?LATE", NULL},
    {{"A=1 X=", "A=1", "A= X="}, "", "A,?X", NULL},
    {{"OMP_NUM_THREADS=1 R=0", "OMP_NUM_THREADS=2 R=1", "OMP_NUM_THREADS=1 R=2"},
     "",
     "OMP_NUM_THREADS,R",
     "'OMP_NUM_THREADS' is not the same for all ranks"},
    {{"", "CUDA_VISIBLE_DEVICES=1", ""},
     "",
     "?CUDA_VISIBLE_DEVICES",
     "'CUDA_VISIBLE_DEVICES' is not the same for all ranks"},
};

LOOP_TEST(variables_equal_or_different_among_ranks, ARRAY_LEN(worlds))
{
    struct strv envs[3] = {{0}}, common = {0};
    for (int i = 0; i < 3; i++) {
        char *copy = xstrdup(worlds[_i].envs[i]);
        for (char *w = strtok(copy, " "); w; w = strtok(NULL, " "))
            strv_push(&envs[i], w);
        free(copy);
    }
    char *apart = NULL;
    struct ddp_err why = {""};
    int rc = preload_common(envs, 3, &common, &apart, &why);
    ck_assert_int_eq(rc, worlds[_i].why ? -1 : 0);
    if (worlds[_i].why)
        ck_assert_str_eq(why.text, worlds[_i].why);
    ck_assert_str_eq(apart, worlds[_i].apart);
    char *text = common.n ? shell_join(common.v) : xstrdup("");
    ck_assert_str_eq(text, worlds[_i].common);
    free(text);
    free(apart);
    strv_finish(&common);
    for (int i = 0; i < 3; i++)
        strv_finish(&envs[i]);
}
