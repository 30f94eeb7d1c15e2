/* launcher/cli/interpreter.c - see interpreter.h */
#include "launcher/cli/interpreter.h"

#include "common/apps.h"
#include "common/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef const char *(*get_env_fn)(const char *name);

static bool runs(const char *path)
{
    struct stat st;
    return access(path, X_OK) == 0 && stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

bool program_in_path(const char *path, const char *name)
{
    for (const char *p = path ? path : ""; *p;) {
        size_t n = strcspn(p, ":");
        OWNED char *file = xasprintf("%.*s/%s", (int)n, p, name);
        if (runs(file))
            return true;
        p += n + (p[n] == ':');
    }
    return false;
}

size_t interpreter_place(const char *path, const char *prefix)
{
    size_t len = strlen(prefix), at = 0;
    for (const char *p = path ? path : ""; *p; at++) {
        size_t n = strcspn(p, ":");
        if (n == len + 4 && strncmp(p, prefix, len) == 0 &&
            strncmp(p + len, "/bin", 4) == 0)
            return at;
        p += n + (p[n] == ':');
    }
    return NOT_IN_PATH;
}

/* Python of the active environment, or a name to find in PATH; the reason in `*why`. Both
 * malloc'ed. If both kinds are set and PATH has only one of them, that one is active: the
 * other variable is stale. */
static char *find_python(get_env_fn get_env, char **why)
{
    static const struct {
        const char *variable, *kind;
    } kinds[] = {{"VIRTUAL_ENV", "virtual environment"},
                 {"CONDA_PREFIX", "conda environment"}};
    const char *path = get_env("PATH");
    for (int listed = 1; listed >= 0; listed--) {
        for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
            const char *dir = get_env(kinds[i].variable);
            if (!dir || *dir != '/' ||
                (listed && interpreter_place(path, dir) == NOT_IN_PATH))
                continue;
            char *python = xasprintf("%s/bin/python3", dir);
            if (runs(python)) {
                *why = xasprintf("%s %s", kinds[i].kind, dir);
                return python;
            }
            free(python);
        }
    }
    *why = xstrdup("PATH");
    return xstrdup(!program_in_path(path, "python3") && program_in_path(path, "python")
                       ? "python"
                       : "python3");
}

/* Append the words after "#!" in the file's first line: interpreter and at most one
 * argument, as the kernel splits it. None without "#!". */
static void read_first_line(const char *file, struct strv *words)
{
    char line[256] = "", *rest = NULL;
    SCOPED(close_file) FILE *f = fopen(file, "re");
    bool is = f && fgets(line, sizeof line, f) && strncmp(line, "#!", 2) == 0;
    const char *interpreter = is ? strtok_r(line + 2, " \t\r\n", &rest) : NULL;
    const char *argument = interpreter ? strtok_r(NULL, "\r\n", &rest) : NULL;
    if (interpreter)
        strv_push(words, interpreter);
    if (argument && argument[strspn(argument, " \t")])
        strv_push(words, argument + strspn(argument, " \t"));
}

static bool ends_in(const char *name, const char *end)
{
    size_t n = strlen(name), len = strlen(end);
    return n > len && strcmp(name + n - len, end) == 0;
}

/* Build `argv` for the script `file`, which is `name` on the command line. */
static void choose(struct opts *opts, get_env_fn get_env, const char *name,
                   const char *file, struct strv *argv)
{
    SCOPED(strv_finish) struct strv first = {0};
    OWNED char *why = NULL;
    size_t at = argv->n;
    read_first_line(file, &first);
    if (first.n > 0 && runs(file)) {
        /* run by the kernel; without a slash execvp() would search PATH */
        strv_push_nodup(argv,
                        strchr(name, '/') ? xstrdup(name) : xasprintf("./%s", name));
        return;
    }
    if (ends_in(name, ".py")) {
        strv_push_nodup(argv, find_python(get_env, &why));
    } else if (ends_in(name, ".jl")) {
        strv_push(argv, "julia");
    } else if (first.n > 0) {
        strv_push_all(argv, first.v);
        why = xstrdup("its first line");
    } else {
        strv_push(argv, "bash");
    }
    free(opts->interpreter);
    opts->interpreter = xasprintf("%s, from %s", argv->v[at], why ? why : "PATH");
    strv_push(argv, name);
}

bool interpreter_knows(const char *name)
{
    return ends_in(name, ".py") || ends_in(name, ".sh") || ends_in(name, ".jl");
}

char *interpreter_path(const struct opts *opts, const char *name)
{
    return *name == '/' || !opts->wdir ? xstrdup(name)
                                       : xasprintf("%s/%s", opts->wdir, name);
}

/* Append the words of one program, behind its interpreter. */
static void choose_program(struct opts *opts, char *const *words, size_t n,
                           struct strv *argv, void *arg)
{
    get_env_fn get_env = *(get_env_fn *)arg;
    const char *name = words[0];
    size_t before = argv->n;
    if (opts->module) {
        OWNED char *why = NULL;
        strv_push_nodup(argv, find_python(get_env, &why));
        free(opts->interpreter);
        opts->interpreter = xasprintf("%s, from %s", argv->v[before], why);
        strv_push(argv, "-m");
        strv_push(argv, name);
    } else if (interpreter_knows(name)) {
        struct stat st;
        OWNED char *file = interpreter_path(opts, name);
        if (stat(file, &st) == 0 && S_ISREG(st.st_mode))
            choose(opts, get_env, name, file, argv);
    }
    for (size_t i = argv->n > before ? 1 : 0; i < n; i++)
        strv_push(argv, words[i]);
}

void programs_rewrite(struct opts *opts, rewrite_fn rewrite, void *arg)
{
    struct strv argv = {0}, apps = {0};
    size_t nwords = 0;
    while (opts->argv[nwords])
        nwords++;
    for (size_t i = 0; nwords > 0 && i <= opts->apps.n; i++) {
        struct app app;
        apps_get(&opts->apps, i, nwords, &app);
        if (i > 0)
            apps_add(&apps, app.first, argv.n);
        rewrite(opts, opts->argv + app.word, app.nwords, &argv, arg);
    }
    strv_finish(&opts->apps);
    opts->apps = apps;
    if (nwords == 0)
        return;
    strv_finish(&opts->interpreted);
    opts->interpreted = argv;
    opts->argv = opts->interpreted.v;
}

void interpreter_choose(struct opts *opts, get_env_fn get_env)
{
    if (!opts->no_python)
        programs_rewrite(opts, choose_program, &get_env);
}
