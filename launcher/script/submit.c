/* launcher/script/submit.c - see submit.h
 *
 * The script waits in a memory file, which the command reads as its input, so there is
 * one pipe to listen to and nothing to deadlock on.
 */
#include "launcher/script/submit.h"

#include "common/await.h"
#include "common/duration.h"
#include "common/err.h"
#include "common/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { ANSWER_MS = 120000, END_MS = 10000, SAID_MAX = 4096 };

const char *submit_program(enum scheduler scheduler)
{
    return scheduler == SCHED_SLURM ? "sbatch" : scheduler == SCHED_LSF ? "bsub" : "qsub";
}

void submit_command(enum scheduler scheduler, const struct strv *more, struct strv *argv)
{
    strv_push(argv, submit_program(scheduler));
    if (scheduler == SCHED_SLURM)
        strv_push(argv, "--parsable");
    else if (scheduler == SCHED_SGE)
        strv_push(argv, "-terse");
    strv_push_all(argv, more->v);
}

/* A file without a name that holds `text`, at its start; -1 with an error. */
static int text_file(const char *text, struct ddp_err *err)
{
    int fd = memfd_create("script", MFD_CLOEXEC);
    size_t size = strlen(text);
    if (fd < 0 || write(fd, text, size) != (ssize_t)size || lseek(fd, 0, SEEK_SET) < 0) {
        if (fd >= 0)
            close(fd);
        return err_errno(err, "no room for the script");
    }
    return fd;
}

/* Starts it with `in`; what it says on either stream can be read from `*out`. */
static pid_t start(char *const *argv, int in, int *out, struct ddp_err *err)
{
    int ends[2];
    pid_t pid = -1;
    if (pipe2(ends, O_CLOEXEC) < 0)
        return err_errno(err, "no pipe");
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in, STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
    int rc = posix_spawnp(&pid, argv[0], &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    *out = ends[0];
    if (rc == 0)
        return pid;
    close(ends[0]);
    errno = rc;
    if (rc == ENOENT)
        return err_set(err,
                       "there is no '%s' here: submit where the scheduler's commands "
                       "are, such as a login node",
                       argv[0]);
    return err_errno(err, "cannot run '%s'", argv[0]);
}

/* Everything up to its end, the first SAID_MAX bytes of it. */
static int listen_to(int fd, char said[SAID_MAX], const char *name, struct ddp_err *err)
{
    int64_t end = now_ms() + ANSWER_MS;
    size_t n = 0;
    char more[512];
    for (;;) {
        int64_t left = end - now_ms();
        struct pollfd p = {.fd = fd, .events = POLLIN};
        int rc = left > 0 ? poll(&p, 1, (int)left) : 0;
        if (rc < 0 && errno == EINTR)
            continue;
        if (rc <= 0)
            return err_set(err, "%s has not answered for %d s", name, ANSWER_MS / 1000);
        ssize_t got = read(fd, more, sizeof more);
        if (got <= 0)
            break;
        size_t take = (size_t)got < SAID_MAX - 1 - n ? (size_t)got : SAID_MAX - 1 - n;
        memcpy(said + n, more, take);
        n += take;
    }
    said[n] = '\0';
    return 0;
}

static int run(char *const *argv, const char *script, char said[SAID_MAX], int *status,
               struct ddp_err *err)
{
    int in = text_file(script, err), out = -1;
    if (in < 0)
        return -1;
    pid_t pid = start(argv, in, &out, err);
    close(in);
    if (pid < 0)
        return -1;
    int rc = listen_to(out, said, argv[0], err);
    close(out);
    if (await_end(pid, rc < 0 ? 0 : now_ms() + END_MS, status) < 0 && rc == 0)
        rc = err_set(err, "%s does not end, though it has said '%.200s'", argv[0], said);
    return rc;
}

/* The line that says most is the first: sbatch's reason comes before its summary. Without
 * the program's own name. */
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
    err_set(err, "%s refuses the job: %s", name, *line ? line : "it does not say why");
}

/* The number in what was said: the last line's first word for sbatch ("12;cluster") and
 * qsub, the one in angle brackets for bsub ("Job <12> is submitted"). */
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

/* Runs it; what it said when it took the script. */
static int offer(char *const *argv, const char *script, char said[SAID_MAX],
                 struct ddp_err *err)
{
    int status = 0;
    if (run(argv, script, said, &status, err) < 0)
        return -1;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    first_line(said, argv[0], err);
    return -1;
}

/* Slurm takes jobs that can never start, and leaves them waiting. Asked first, it says
 * so. */
static int ask_first(const struct strv *argv, const char *script, struct ddp_err *err)
{
    struct strv ask = {0};
    char said[SAID_MAX] = "";
    strv_push_all(&ask, argv->v);
    strv_push(&ask, "--test-only");
    int rc = offer(ask.v, script, said, err);
    strv_finish(&ask);
    return rc;
}

char *submit(enum scheduler scheduler, const struct strv *argv, const char *script,
             struct ddp_err *err)
{
    char said[SAID_MAX] = "", *id = NULL;
    if (scheduler == SCHED_SLURM && ask_first(argv, script, err) < 0)
        return NULL;
    if (offer(argv->v, script, said, err) < 0)
        return NULL;
    if (!(id = find_id(scheduler, said)))
        err_set(err, "%s does not tell the job's number: '%.200s'", argv->v[0], said);
    return id;
}
