/* launcher/plugins/preflight/check_program.c - the program: found, and the same on all
 * hosts
 *
 * Compares the program, the interpreter of a script, and every argument that is a file
 * (train.py in `python3 train.py`).
 */
#include "launcher/plugins/preflight/run.h"

#include "common/digest.h"
#include "common/mem.h"
#include "launcher/transport/program.h"

#include <ctype.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* Larger files (a data set among the arguments) are compared by size only. */
enum { WHOLE_MAX = 64 << 20, ARGS_MAX = 8 };

char *run_output(const char *const *argv, char *const *env, const char *dir)
{
    enum { MOST = 256 << 10 };
    int out[2];
    if (pipe2(out, O_CLOEXEC) < 0)
        return NULL;
    pid_t pid = fork();
    if (pid == 0) {
        dup2(out[1], STDOUT_FILENO);
        dup2(out[1], STDERR_FILENO);
        if (chdir(dir) == 0 || chdir("/") == 0)
            execve(argv[0], (char *const *)(uintptr_t)argv, env);
        _exit(EXIT_NOT_FOUND);
    }
    close(out[1]);
    char *text = xcalloc(1, MOST + 1);
    size_t have = 0;
    while (pid > 0 && have < MOST) {
        ssize_t n = read(out[0], text + have, MOST - have);
        if (n <= 0)
            break;
        have += (size_t)n;
    }
    close(out[0]);
    int status = 0;
    if (pid < 0 || waitpid(pid, &status, 0) != pid ||
        (WIFEXITED(status) && WEXITSTATUS(status) == EXIT_NOT_FOUND && have == 0)) {
        free(text);
        return NULL;
    }
    return text;
}

char *program_path(const struct check_ctx *ctx, bool report)
{
    struct ddp_err err;
    int code;
    if (ctx->probe->argv.n == 0)
        return NULL;
    char *path = program_find(ctx->probe->argv.v[0], ctx->probe->wdir,
                              strv_env_get(ctx->env, "PATH"), NULL, &code, &err);
    /* a missing working directory is reported by check_wdir() */
    if (!path && report && access(ctx->probe->wdir, X_OK) == 0)
        found_problem(
            ctx, "%s%s", err.text,
            code == EXIT_NOT_FOUND ? "; copy it there, or use a shared directory" : "");
    return path;
}

char *program_interpreter(const struct check_ctx *ctx, const char *path, bool report)
{
    char line[300] = "";
    SCOPED(close_file) FILE *f = fopen(path, "re");
    if (f && !fgets(line, sizeof line, f))
        line[0] = '\0';
    if (strncmp(line, "#!", 2) != 0)
        return NULL;
    char *save, *word = strtok_r(line + 2, " \t\r\n", &save);
    const char *slash = word ? strrchr(word, '/') : NULL;
    if (slash && strcmp(slash, "/env") == 0)
        word = strtok_r(NULL, " \t\r\n", &save);
    if (word && strcmp(word, "-S") == 0)
        word = strtok_r(NULL, " \t\r\n", &save);
    int code;
    char *found = word ? program_find(word, ctx->probe->wdir,
                                      strv_env_get(ctx->env, "PATH"), NULL, &code, NULL)
                       : NULL;
    /* neither an option of env, nor a variable that it sets */
    if (word && !found && report && isalpha((unsigned char)*word) && !strchr(word, '='))
        found_problem(ctx, "'%s', the interpreter of '%s', is not in PATH there", word,
                      ctx->probe->argv.v[0]);
    return found;
}

static void report_file(const struct check_ctx *ctx, const char *name, const char *path)
{
    char sum[DIGEST_TEXT];
    struct ddp_err err;
    struct stat st;
    int64_t size;
    if (stat(path, &st) == 0 && st.st_size > WHOLE_MAX) {
        OWNED char *key = xasprintf("%lld bytes", (long long)st.st_size);
        found_value(ctx, name, key, "'%s', %s", name, key);
    } else if (digest_file(path, sum, &size, &err) < 0) {
        found_problem(ctx, "%s", err.text);
    } else {
        found_value(ctx, name, sum, "'%s', %lld bytes, sha256 %.12s", name,
                    (long long)size, sum);
    }
}

void check_program(const struct check_ctx *ctx)
{
    OWNED char *path = program_path(ctx, true);
    if (!path)
        return;
    report_file(ctx, ctx->probe->argv.v[0], path);
    OWNED char *interpreter = program_interpreter(ctx, path, true);
    OWNED char *trouble = program_script_trouble(path, ctx->probe->argv.v[0]);
    if (trouble)
        found_problem(ctx, "cannot run '%s': %s", ctx->probe->argv.v[0], trouble);
    else if (interpreter)
        report_file(ctx, interpreter, interpreter);
    for (size_t i = 1, seen = 0; i < ctx->probe->argv.n && seen < ARGS_MAX; i++) {
        const char *word = ctx->probe->argv.v[i];
        struct stat st;
        OWNED char *file =
            word[0] == '/' ? xstrdup(word) : xasprintf("%s/%s", ctx->probe->wdir, word);
        if (word[0] && stat(file, &st) == 0 && S_ISREG(st.st_mode)) {
            report_file(ctx, word, file);
            seen++;
        }
    }
}
