/* common/helper.c - see helper.h */
#include "common/helper.h"

#include "common/duration.h"
#include "common/group_guard.h"
#include "common/mem.h"
#include "common/sock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* END_MS: from the end of its output to its exit. KILLED_MS: for the kernel to end it
 * after SIGKILL; a process stuck in the kernel is left to init. The exit is polled every
 * 0.1 ms at first, since a process that closed its output nearly always exits at once. */
enum {
    END_MS = 5000,
    KILLED_MS = 2000,
    PAUSE_US = 100,
    PAUSE_MAX_US = 50000,
    PIECE = 8192
};

extern char **environ;

static int spawn(const struct helper *h, const posix_spawn_file_actions_t *files,
                 pid_t group, pid_t *pid)
{
    posix_spawnattr_t attr;
    posix_spawnattr_init(&attr);
    posix_spawnattr_setflags(&attr, h->group ? POSIX_SPAWN_SETPGROUP : 0);
    posix_spawnattr_setpgroup(&attr, group);
    int rc = posix_spawnp(pid, h->argv[0], files, &attr,
                          (char *const *)(uintptr_t)h->argv, environ);
    posix_spawnattr_destroy(&attr);
    return rc;
}

/* Start it with its output readable from `*out`; 0, or -1 with errno. */
static int start(const struct helper *h, pid_t group, pid_t *pid, int *out)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0)
        return -1;
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    if (h->reads)
        posix_spawn_file_actions_adddup2(&files, h->in, STDIN_FILENO);
    else
        posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&files, ends[1], STDOUT_FILENO);
    if (h->err_too)
        posix_spawn_file_actions_adddup2(&files, ends[1], STDERR_FILENO);
    int rc = spawn(h, &files, group, pid);
    posix_spawn_file_actions_destroy(&files);
    close(ends[1]);
    *out = ends[0];
    if (rc == 0)
        return 0;
    close(ends[0]);
    errno = rc;
    return -1;
}

/* Read all output until EOF: 0; ETIMEDOUT after the deadline, EFBIG if it is too much. */
static int listen_to(const struct helper *h, int fd, char **output, size_t *n)
{
    int64_t deadline_ms = now_ms() + h->answer_ms;
    char dropped[PIECE];
    size_t room = 0;
    while (!h->at_most || *n < h->most) {
        if (*n < h->most && *n == room) {
            room = room * 2 + PIECE < h->most ? room * 2 + PIECE : h->most;
            *output = xrealloc(*output, room + 1, 1);
        }
        if (now_ms() >= deadline_ms || sock_await(fd, POLLIN, deadline_ms) < 0)
            return ETIMEDOUT;
        bool keep = *n < room;
        ssize_t got =
            keep ? read(fd, *output + *n, room - *n) : read(fd, dropped, sizeof dropped);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return 0;
        *n += keep ? (size_t)got : 0;
    }
    return EFBIG;
}

static int look_for_end(pid_t pid, int64_t deadline_ms, int *status)
{
    for (long us = PAUSE_US;; us = us < PAUSE_MAX_US ? us * 2 : PAUSE_MAX_US) {
        pid_t ended = waitpid(pid, status, WNOHANG);
        if (ended == pid)
            return 0;
        if ((ended < 0 && errno != EINTR) || now_ms() >= deadline_ms)
            return -1;
        nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL);
    }
}

static int run(const struct helper *h, pid_t group, char **output, size_t *n, int *status)
{
    pid_t pid;
    int out;
    if (start(h, group, &pid, &out) < 0)
        return -1;
    *output = xcalloc(1, 1);
    int error = listen_to(h, out, output, n);
    (*output)[*n] = '\0';
    bool ended = error == 0 && look_for_end(pid, now_ms() + END_MS, status) == 0;
    if (!ended)
        kill(h->group ? -group : pid, SIGKILL);
    close(out); /* not before: one that still writes would die of SIGPIPE */
    if (ended)
        return 0;
    look_for_end(pid, now_ms() + KILLED_MS, status);
    errno = error ? error : ETIMEDOUT;
    return -1;
}

int helper_ask(const struct helper *h, char **output, size_t *n, int *status)
{
    struct group_guard guard = {.fd = -1};
    int guard_status;
    *output = NULL;
    *n = 0;
    if (h->group && group_guard_start(&guard) < 0)
        return -1;
    int rc = run(h, guard.pid, output, n, status), error = errno;
    if (h->group) {
        group_guard_end(&guard);
        look_for_end(guard.pid, now_ms() + KILLED_MS, &guard_status);
    }
    errno = error;
    return rc;
}
