/* launcher/tools/script/python_env.c - see python_env.h
 *
 * Both may be active, a venv made inside a conda environment most often. They are entered
 * in the order that their folders have in PATH: the last one entered stands first there.
 */
#include "launcher/tools/script/python_env.h"

#include "common/mem.h"
#include "launcher/cli/interpreter.h"
#include "launcher/tools/script/words.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef const char *(*get_env_fn)(const char *name);

static const char *path_of(get_env_fn get_env, const char *name)
{
    const char *value = get_env(name);
    return value && *value == '/' ? value : NULL;
}

static bool readable(const char *path)
{
    return access(path, R_OK) == 0;
}

/* What conda's own activation does, for an environment that no command is known for: its
 * programs first, then the scripts of its packages. */
static char *enter_prefix(const char *prefix)
{
    char *dir = script_quote(prefix);
    char *lines = xasprintf(
        "export CONDA_PREFIX=%s PATH=%s/bin:\"$PATH\"\n"
        "# shellcheck source=/dev/null\n"
        "for file in %s/etc/conda/activate.d/*.sh; do [ ! -r \"$file\" ] || source \"$file\"; done",
        dir, dir, dir);
    free(dir);
    return lines;
}

/* "activate" of conda, mamba or micromamba, which is a function of the shell. */
static char *enter_conda(get_env_fn get_env, const char *prefix)
{
    const char *conda = path_of(get_env, "CONDA_EXE"),
               *mamba = path_of(get_env, "MAMBA_EXE");
    const char *exe = conda ? conda : mamba;
    if (!exe || access(exe, X_OK) != 0)
        return enter_prefix(prefix);
    char *program = script_quote(exe), *dir = script_quote(prefix);
    const char *name = conda ? "conda" : strrchr(exe, '/') + 1;
    char *lines = xasprintf(
        "eval \"$(%s %s)\"\n"
        "%s activate %s || exit 1",
        program, conda ? "shell.bash hook" : "shell hook --shell bash", name, dir);
    free(program);
    free(dir);
    return lines;
}

static char *enter_venv(const char *prefix)
{
    char *file = xasprintf("%s/bin/activate", prefix), *quoted = script_quote(file);
    char *dir = script_quote(prefix);
    char *lines =
        readable(file)
            ? xasprintf("source %s", quoted)
            : xasprintf("export VIRTUAL_ENV=%s PATH=%s/bin:\"$PATH\"", dir, dir);
    free(dir);
    free(quoted);
    free(file);
    return lines;
}

static bool usable(const char *prefix)
{
    char *bin = prefix ? xasprintf("%s/bin", prefix) : NULL;
    bool is = bin && readable(bin);
    free(bin);
    return is;
}

static void add(struct python_env *env, char *says, char *lines, bool first)
{
    char *old_says = env->says, *old = env->lines;
    env->says =
        old ? xasprintf("%s, then %s", first ? says : old_says, first ? old_says : says)
            : xstrdup(says);
    env->lines = old ? xasprintf("%s\n%s", first ? lines : old, first ? old : lines)
                     : xstrdup(lines);
    free(old_says);
    free(old);
    free(says);
    free(lines);
}

void python_env_find(get_env_fn get_env, struct python_env *env)
{
    const char *venv = path_of(get_env, "VIRTUAL_ENV");
    const char *conda = path_of(get_env, "CONDA_PREFIX");
    const char *name = get_env("CONDA_DEFAULT_ENV");
    *env = (struct python_env){0};
    if (usable(venv))
        add(env, xasprintf("virtual environment %s", venv), enter_venv(venv), false);
    if (usable(conda))
        add(env, xasprintf("conda environment '%s' (%s)", name ? name : "", conda),
            enter_conda(get_env, conda),
            env->says && interpreter_place(get_env("PATH"), venv) <=
                             interpreter_place(get_env("PATH"), conda));
}

void python_env_finish(struct python_env *env)
{
    free(env->says);
    free(env->lines);
    *env = (struct python_env){0};
}
