/* launcher/tools/script/submit.c - see submit.h
 *
 * The command reads the script from a memfd as its stdin, so there is only one pipe, the
 * command's output, and no deadlock.
 */
#include "launcher/tools/script/submit.h"

#include "common/err.h"
#include "common/helper.h"
#include "common/mem.h"
#include "launcher/tools/script/site.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ANSWER_MS = 120000, SAID_MAX = 4096 };

void submit_command(enum scheduler scheduler, const struct strv *more, struct strv *argv)
{
    const struct scheduler_facts *is = &schedulers[scheduler];
    const char *second = strchr(is->submit, ' ');
    strv_pushf(argv, "%.*s", (int)strcspn(is->submit, " "), is->submit);
    if (second)
        strv_push(argv, second + 1);
    if (is->brief)
        strv_push(argv, is->brief);
    strv_push_all(argv, more->v);
}

/* A memfd that holds `text`, positioned at its start; -1 with an error. */
static int text_file(const char *text, struct ddp_err *err)
{
    int fd = memfd_create("script", MFD_CLOEXEC);
    size_t size = strlen(text);
    if (fd < 0 || write(fd, text, size) != (ssize_t)size || lseek(fd, 0, SEEK_SET) < 0) {
        close_fd(&fd);
        return err_errno(err, "cannot hold the script in memory");
    }
    return fd;
}

/* Runs the command. Returns its stdout and stderr, which the caller frees, or NULL. */
static char *run(const char *const *argv, const char *script, int *status,
                 struct ddp_err *err)
{
    struct helper h = {.argv = argv,
                       .reads = true,
                       .in = text_file(script, err),
                       .err_too = true,
                       .answer_ms = ANSWER_MS,
                       .most = SAID_MAX};
    SCOPED(close_fd) int in = h.in;
    char *said;
    size_t n;
    if (in < 0)
        return NULL;
    if (helper_ask(&h, &said, &n, status) == 0)
        return said;
    if (errno == ENOENT)
        err_set(err,
                "no command '%s' here: submit on a login node, where the scheduler's "
                "commands are",
                argv[0]);
    else if (errno != ETIMEDOUT)
        err_errno(err, "cannot run '%s'", argv[0]);
    else if (n > 0)
        err_set(err, "%s does not end; its output: '%.200s'", argv[0], said);
    else
        err_set(err, "%s has not answered for %d s", argv[0], ANSWER_MS / 1000);
    free(said);
    return NULL;
}

/* The first line of the output has the reason, as sbatch's summary follows it. Without
 * the command's name. */
static void first_line(char *said, const char *name, struct ddp_err *err)
{
    char *line = said;
    while (*line == '\n')
        line++;
    line[strcspn(line, "\n")] = '\0';
    size_t len = strlen(name);
    if (strncmp(line, name, len) == 0 && line[len] == ':')
        line += len + 1 + strspn(line + len + 1, " ");
    if (strncmp(line, "error: ", 7) == 0)
        line += 7;
    err_set(err, "%s refuses the job: %s", name, *line ? line : "no reason given");
}

/* The job's number in the output: the last line's first word for sbatch ("12;cluster"),
 * qsub and flux, the one in angle brackets for bsub ("Job <12> is submitted"). */
static char *find_id(enum scheduler scheduler, const char *said)
{
    if (scheduler == SCHED_LSF) {
        const char *at = strstr(said, "Job <");
        return at ? xstrndup(at + 5, strcspn(at + 5, ">")) : NULL;
    }
    size_t len = strlen(said);
    while (len > 0 && said[len - 1] == '\n')
        len--;
    const char *line = said + len;
    while (line > said && line[-1] != '\n')
        line--;
    size_t n = strcspn(line, "; \t\n");
    return n > 0 ? xstrndup(line, n) : NULL;
}

/* Submits. Returns the output if the script was accepted, which the caller frees, or
 * NULL. */
static char *offer(const struct strv *argv, const char *script, struct ddp_err *err)
{
    int status;
    char *said = run((const char *const *)argv->v, script, &status, err);
    if (!said || (WIFEXITED(status) && WEXITSTATUS(status) == 0))
        return said;
    first_line(said, argv->v[0], err);
    free(said);
    return NULL;
}

/* Slurm accepts jobs that can never start and leaves them pending; --test-only tells. */
static int ask_first(const struct strv *argv, const char *script, struct ddp_err *err)
{
    SCOPED(strv_finish) struct strv ask = {0};
    strv_push_all(&ask, argv->v);
    strv_push(&ask, "--test-only");
    OWNED char *said = offer(&ask, script, err);
    return said ? 0 : -1;
}

char *submit(enum scheduler scheduler, const struct strv *argv, const char *script,
             struct ddp_err *err)
{
    if (scheduler == SCHED_SLURM && ask_first(argv, script, err) < 0)
        return NULL;
    OWNED char *said = offer(argv, script, err);
    char *id = said ? find_id(scheduler, said) : NULL;
    if (said && !id)
        err_set(err, "no job number in the output of %s: '%.200s'", argv->v[0], said);
    return id;
}
