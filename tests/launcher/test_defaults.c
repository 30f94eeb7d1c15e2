/* Options from variables and files: the command line replaces DDPRUN_OPTIONS, these
 * torchrun's PET_*, those ddprun.ini, and that the user's own file. */
#include "tests/support/suite.h"

#include "common/strv.h"
#include "tests/launcher/words.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* An empty working directory, removed at the end. */
static void enter(void)
{
    char *folder = temp_dir();
    ck_assert_int_eq(chdir(folder), 0);
    setenv("XDG_CONFIG_HOME", folder, 1);
    free(folder);
}

static void write_defaults(void)
{
    put_file("ddprun/config",
             "; mine\nnp = 8\ngrace = 9s\noversubscribe = true\nreport = no\n");
    put_file("ddprun.ini", "[ddprun]\nnp = 6\n  x = A=1\nx = B=2 3\ntag-output = on\n");
}

/* As deepspeed reads it: the home's first, and the command line wins. */
TEST(deepspeed_env_is_read)
{
    struct opts o;
    struct ddp_err err;
    enter();
    put_file("home/.deepspeed_env", "NCCL_DEBUG=INFO\nA=1\n");
    put_file(".deepspeed_env", "# here\nA=2=3\n");
    setenv("HOME", "home", 1);
    ck_ok(parse_words("deepspeed --num_gpus 2 train.py", &o, &err), err);
    ck_assert_str_eq(strv_env_get(&o.export_env, "NCCL_DEBUG"), "INFO");
    char *exported = shell_join(o.export_env.v);
    ck_assert_str_eq(exported, "DDPRUN_LOCAL_RANK_ARG=1 NCCL_DEBUG=INFO A=1 A=2=3");
    free(exported);
    opts_finish(&o);
    ck_ok(parse_words("torchrun train.py", &o, &err), err);
    ck_assert_uint_eq(o.export_env.n, 0);
    opts_finish(&o);
}

TEST(a_contradiction_names_the_options_from_elsewhere)
{
    struct opts o;
    struct ddp_err err;
    enter();
    setenv("DDPRUN_OPTIONS", "--min-np 2", 1);
    ck_assert_int_eq(parse_words("ddprun --nnodes 1 prog", &o, &err), -1);
    ck_assert_ptr_nonnull(strstr(
        err.text, "leave one out; options are also from DDPRUN_OPTIONS: --min-np 2"));
    opts_finish(&o);
}

TEST(defaults_come_before_the_command_line)
{
    struct opts o;
    struct ddp_err err;
    enter();
    write_defaults();
    setenv("PET_NPROC_PER_NODE", "3", 1);
    setenv("PET_RDZV_BACKEND", "c10d", 1);
    setenv("PET_STANDALONE", "1", 1);
    setenv("DDPRUN_OPTIONS", "-np 5 --bind-to none", 1);
    ck_ok(parse_words("ddprun prog", &o, &err), err);
    ck_assert_int_eq(o.np, 5);
    ck_assert_int_eq(o.per_node, 3);
    ck_assert_int_eq(o.grace_ms, 9000);
    ck_assert(o.oversubscribe);
    ck_assert(!o.report);
    ck_assert_int_eq(o.tag_output, TAG_ON);
    ck_assert_int_eq(o.bind_to, BIND_NONE);
    ck_assert_uint_eq(o.passed.n, 0); /* the ddprun in a batch job reads them itself */
    char *exported = shell_join(o.export_env.v);
    ck_assert_str_eq(exported, "A=1 'B=2 3'");
    free(exported);
    ck_assert_uint_eq(o.origins.n, 4);
    ck_assert_ptr_nonnull(strstr(o.origins.v[0], "/ddprun/config: --np=8 --grace=9s "
                                                 "--oversubscribe"));
    ck_assert_str_eq(o.origins.v[1], "ddprun.ini: --np=6 --x=A=1 '--x=B=2 3' "
                                     "--tag-output=on");
    ck_assert_str_eq(o.origins.v[3], "DDPRUN_OPTIONS: -np 5 --bind-to none");
    opts_finish(&o);
    ck_ok(parse_words("ddprun -np 2 prog", &o, &err), err);
    ck_assert_int_eq(o.np, 2);
    opts_finish(&o);
    ck_ok(parse_words("ddprun --nproc-per-node 7 prog", &o, &err), err);
    ck_assert_int_eq(o.per_node, 7);
    ck_assert_int_eq(o.np, 0); /* another number of ranks than the command line's */
    opts_finish(&o);
    setenv("TORCHELASTIC_RUN_ID", "outer", 1); /* PET_* are the outer torchrun's */
    ck_ok(parse_words("ddprun -np 2 prog", &o, &err), err);
    ck_assert_int_eq(o.per_node, 0);
    opts_finish(&o);
    setenv("DDPRUN_OPTIONS", "np=5 report --bind-to none", 1); /* extended */
    ck_ok(parse_words("ddprun prog", &o, &err), err);
    ck_assert_int_eq(o.np, 5);
    ck_assert(o.report);
    ck_assert_int_eq(o.bind_to, BIND_NONE);
    opts_finish(&o);
}

TEST(mistakes_in_defaults_name_their_origin)
{
    struct opts o;
    struct ddp_err err;
    char text[400];
    enter();
    write_defaults();
    setenv("DDPRUN_OPTIONS", "-np 5 prog", 1);
    ck_assert_int_eq(parse_words("ddprun prog", &o, &err), -1);
    ck_assert_str_eq(err.text, "DDPRUN_OPTIONS: 'prog' is not an option");
    opts_finish(&o);
    setenv("DDPRUN_OPTIONS", "", 1);
    put_file("ddprun.ini", "np = 4\nnosuch = 1\n");
    ck_assert_int_eq(parse_words("ddprun prog", &o, &err), -1);
    ck_assert_str_eq(err.text,
                     "ddprun.ini: unknown option '--nosuch=1' (try ddprun --help)");
    opts_finish(&o);
    put_file("ddprun.ini", "np = 4\n[torchrun]\nnnodes = 1\n");
    ck_assert_int_eq(parse_words("ddprun prog", &o, &err), -1);
    ck_assert_str_eq(err.text, "'ddprun.ini' line 3: in a section that is not [ddprun]");
    opts_finish(&o);
    put_file("ddprun.ini", "np = 4\nnosuch\n[torchrun]\nnnodes = 1\n");
    ck_assert_int_eq(parse_words("ddprun prog", &o, &err), -1);
    ck_assert_str_eq(err.text, "'ddprun.ini' line 2: not 'name = value'");
    opts_finish(&o);
    snprintf(text, sizeof text, "np = 4\nx = %0300d = 1\n", 7); /* inih would split it */
    put_file("ddprun.ini", text);
    ck_assert_int_eq(parse_words("ddprun prog", &o, &err), -1);
    ck_assert_str_eq(err.text, "'ddprun.ini' line 2 is too long");
    opts_finish(&o);
    ck_assert_int_eq(chmod("ddprun.ini", 0666), 0); /* writable by others: not read */
    ck_ok(parse_words("ddprun prog", &o, &err), err);
    ck_assert_int_eq(o.np, 8);
    opts_finish(&o);
}
