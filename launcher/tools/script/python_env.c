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
    OWNED char *dir = script_quote(prefix);
    return xasprintf(
        "export CONDA_PREFIX=%s PATH=%s/bin:\"$PATH\"\n"
        "# shellcheck source=/dev/null\n"
        "for file in %s/etc/conda/activate.d/*.sh; do [ ! -r \"$file\" ] || source \"$file\"; done",
        dir, dir, dir);
}

/* "activate" of conda, mamba or micromamba, which is a function of the shell. */
static char *enter_conda(get_env_fn get_env, const char *prefix)
{
    const char *conda = path_of(get_env, "CONDA_EXE"),
               *mamba = path_of(get_env, "MAMBA_EXE");
    const char *exe = conda ? conda : mamba;
    if (!exe || access(exe, X_OK) != 0)
        return enter_prefix(prefix);
    OWNED char *program = script_quote(exe);
    OWNED char *dir = script_quote(prefix);
    const char *name = conda ? "conda" : strrchr(exe, '/') + 1;
    return xasprintf("eval \"$(%s %s)\"\n"
                     "%s activate %s || exit 1",
                     program, conda ? "shell.bash hook" : "shell hook --shell bash", name,
                     dir);
}

static char *enter_venv(const char *prefix)
{
    OWNED char *file = xasprintf("%s/bin/activate", prefix);
    OWNED char *quoted = script_quote(file);
    OWNED char *dir = script_quote(prefix);
    return readable(file)
               ? xasprintf("source %s", quoted)
               : xasprintf("export VIRTUAL_ENV=%s PATH=%s/bin:\"$PATH\"", dir, dir);
}

static bool usable(const char *prefix)
{
    OWNED char *bin = prefix ? xasprintf("%s/bin", prefix) : NULL;
    return bin && readable(bin);
}

static void add(struct python_env *env, char *says, char *lines, bool first)
{
    OWNED char *old_says = env->says;
    OWNED char *old = env->lines;
    env->says =
        old ? xasprintf("%s, then %s", first ? says : old_says, first ? old_says : says)
            : xstrdup(says);
    env->lines = old ? xasprintf("%s\n%s", first ? lines : old, first ? old : lines)
                     : xstrdup(lines);
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
