/* launcher/plugins/preload/preload_fit.c - see preload.h
 *
 * Checks of a command and of its ranks' environments before an interpreter is started.
 * For a program that is not Python they cost an open() and a read(), once per node.
 */
#include "launcher/plugins/preload/preload.h"

#include "common/err.h"
#include "common/mem.h"
#include "common/read_start.h"
#include "launcher/transport/program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The script, behind options of the interpreter. With -E, -I or -S Python ignores our
 * directory, and the helper would run the script: only harmless options are accepted. */
static int find_script(char *const *argv, struct preload_script *script,
                       struct ddp_err *why)
{
    for (size_t i = 1; argv[i]; i++) {
        const char *word = argv[i];
        script->at = i;
        if (word[0] != '-' || !word[1])
            return 0;
        for (const char *c = word + 1; *c; c++) {
            if (*c == 'c' || *c == 'm') {
                script->option = *c;
                script->at += !c[1] && argv[i + 1];
                return 0;
            }
            bool valued = *c == 'W' || *c == 'X';
            if (valued && (c[1] || argv[i + 1])) {
                i += !c[1];
                break;
            }
            if (valued || !strchr("uObBdqsPR", *c))
                return err_set(why, "the interpreter's option '%s'", valued ? c : word);
        }
    }
    return err_set(why, "no script");
}

/* pip writes this if the interpreter's path is too long for a #! line or contains a
 * blank: an exec for the shell, and a string literal for Python. */
static bool is_trampoline(const char *text)
{
    char path[512];
    return (sscanf(text, "#!/bin/sh\n'''exec' \"%511[^\"]\" ", path) == 1 ||
            sscanf(text, "#!/bin/sh\n'''exec' %511s ", path) == 1) &&
           program_is_python(path);
}

/* 1: a Python script; 0: not a script; -1: another script, or unreadable, with the
 * reason. */
static int read_first_line(const char *path, struct ddp_err *why)
{
    char text[1024];
    if (read_start(path, text, sizeof text) < 0)
        return err_errno(why, "cannot read '%s'", path);
    /* what pyenv and asdf put into PATH: it ends by an exec of the interpreter */
    if (strncmp(text, "#!", 2) != 0 ||
        (program_is_python(path) && strstr(path, "/shims/")))
        return 0;
    if (is_trampoline(text))
        return 1;
    text[strcspn(text, "\n")] = '\0';
    char *rest, *word = strtok_r(text + 2, " \t", &rest);
    if (word && strcmp(word, "/usr/bin/env") == 0)
        word = strtok_r(NULL, " \t", &rest);
    if (!word || !program_is_python(word))
        return err_set(why, "'%s' is not a Python script", path);
    word = strtok_r(NULL, " \t", &rest);
    if (word)
        return err_set(why, "its first line gives the interpreter an option '%s'", word);
    return 1;
}

bool preload_is_python(const char *path)
{
    struct ddp_err why;
    return program_is_python(path) || read_first_line(path, &why) == 1;
}

int preload_fits(const char *path, char *const *argv, struct preload_script *script,
                 struct ddp_err *why)
{
    int is = read_first_line(path, why);
    *script = (struct preload_script){0};
    if (is != 0)
        return is < 0 ? -1 : 0;
    return program_is_python(path) ? find_script(argv, script, why)
                                   : err_set(why, "'%s' is not a Python", path);
}

/* --- the environments --------------------------------------------------------------- */

static bool read_at_load(const char *name)
{
    static const char *const begin[] = {
        "OMP_",  "GOMP_",    "KMP_",    "MKL_",   "OPENBLAS_", "BLIS_",
        "LD_",   "MALLOC_",  "GLIBC_",  "CUDA_",  "NVIDIA_",   "NCCL_",
        "ROCR_", "HIP_",     "HSA_",    "PYTHON", "PYTORCH_",  "LC_",
        "LANG",  "NUMEXPR_", "VECLIB_", "GLOO_",
    };
    for (size_t i = 0; i < ARRAY_LEN(begin); i++) {
        if (strncmp(name, begin[i], strlen(begin[i])) == 0)
            return true;
    }
    return false;
}

/* Append to `apart` the names in `env` whose value is not the same in all of `envs`, with
 * a leading '?' if one lacks it; to `common`, unless NULL, the other variables. */
static void add_apart(const struct strv *env, const struct strv *envs, int n,
                      struct strv *common, struct strv *apart)
{
    for (size_t k = 0; k < env->n; k++) {
        OWNED char *name = xstrndup(env->v[k], strcspn(env->v[k], "="));
        const char *value = env->v[k] + strlen(name) + 1;
        bool same = true, everywhere = true;
        for (int i = 0; i < n; i++) {
            const char *other = strv_env_get(&envs[i], name);
            everywhere = everywhere && other;
            same = same && other && strcmp(value, other) == 0;
        }
        if (same && common)
            strv_push(common, env->v[k]);
        else if (!same)
            strv_pushf(apart, "%s%s", everywhere ? "" : "?", name);
    }
}

int preload_common(const struct strv *envs, int n, struct strv *common, char **apart,
                   struct ddp_err *why)
{
    SCOPED(strv_finish) struct strv names = {0};
    char *list = NULL;
    size_t size = 0;
    add_apart(&envs[0], envs, n, common, &names);
    for (int i = 1; i < n; i++)
        add_apart(&envs[i], envs, 1, NULL, &names);
    int rc = 0;
    FILE *f = xmemstream(&list, &size);
    for (size_t i = 0; i < names.n; i++) {
        const char *name = names.v[i] + (names.v[i][0] == '?');
        bool seen = false;
        for (size_t k = 0; k < i && !seen; k++)
            seen = strcmp(names.v[k] + (names.v[k][0] == '?'), name) == 0;
        if (!seen)
            fprintf(f, "%s%s", i ? "," : "", names.v[i]);
        if (rc == 0 && read_at_load(name))
            rc = err_set(why, "'%s' is not the same for all ranks", name);
    }
    xmemclose(f);
    *apart = list;
    return rc;
}
