/* common/helper.c - see helper.h */
#include "common/helper.h"

#include "common/duration.h"
#include "common/mem.h"
#include "common/sock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
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

/* --- a group of its own ------------------------------------------------------------- */

/* A group of its own gets no signal of the terminal. */
static const int endings[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
static struct sigaction before[ARRAY_LEN(endings)];
static volatile sig_atomic_t group; /* 0: it does not run */

static void on_ending(int sig)
{
    if (group > 0)
        kill(-(pid_t)group, SIGKILL);
    signal(sig, SIG_DFL);
    raise(sig); /* when this handler has returned */
}

/* Signals that would end us; others keep what the caller has set. */
static void take_endings(void)
{
    struct sigaction ours = {.sa_handler = on_ending};
    for (size_t i = 0; i < ARRAY_LEN(endings); i++) {
        sigaction(endings[i], NULL, &before[i]);
        if (before[i].sa_handler == SIG_DFL)
            sigaction(endings[i], &ours, NULL);
    }
}

static void leave_endings(void)
{
    group = 0;
    for (size_t i = 0; i < ARRAY_LEN(endings); i++)
        sigaction(endings[i], &before[i], NULL);
}

/* No signal comes between its start and `group`. */
static int spawn(const struct helper *h, const posix_spawn_file_actions_t *files,
                 pid_t *pid)
{
    sigset_t all, ours;
    posix_spawnattr_t attr;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &ours);
    posix_spawnattr_init(&attr);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK |
                                        (h->group ? POSIX_SPAWN_SETPGROUP : 0));
    posix_spawnattr_setsigmask(&attr, &ours);
    int rc = posix_spawnp(pid, h->argv[0], files, &attr,
                          (char *const *)(uintptr_t)h->argv, environ);
    if (rc == 0 && h->group)
        group = *pid;
    posix_spawnattr_destroy(&attr);
    pthread_sigmask(SIG_SETMASK, &ours, NULL);
    return rc;
}

/* --- one run ------------------------------------------------------------------------ */

/* Start it with its output readable from `*out`; 0, or -1 with errno. */
static int start(const struct helper *h, pid_t *pid, int *out)
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
    int rc = spawn(h, &files, pid);
    posix_spawn_file_actions_destroy(&files);
    close(ends[1]);
    *out = ends[0];
    if (rc == 0)
        return 0;
    close(ends[0]);
    errno = rc;
    return -1;
}

/* Read all output until EOF: 0; -1 after the deadline. */
static int listen_to(const struct helper *h, int fd, char **output, size_t *n)
{
    int64_t deadline_ms = now_ms() + h->answer_ms;
    char dropped[PIECE];
    size_t room = 0;
    for (;;) {
        if (*n < h->most && *n == room) {
            room = room * 2 + PIECE < h->most ? room * 2 + PIECE : h->most;
            *output = xrealloc(*output, room + 1, 1);
        }
        if (sock_await(fd, POLLIN, deadline_ms) < 0)
            return -1;
        bool keep = *n < room;
        ssize_t got =
            keep ? read(fd, *output + *n, room - *n) : read(fd, dropped, sizeof dropped);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return 0;
        *n += keep ? (size_t)got : 0;
    }
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

static int run(const struct helper *h, char **output, size_t *n, int *status)
{
    pid_t pid;
    int out;
    if (start(h, &pid, &out) < 0)
        return -1;
    *output = xcalloc(1, 1);
    int rc = listen_to(h, out, output, n);
    (*output)[*n] = '\0';
    close(out);
    if (rc == 0 && look_for_end(pid, now_ms() + END_MS, status) == 0)
        return 0;
    kill(h->group ? -pid : pid, SIGKILL);
    look_for_end(pid, now_ms() + KILLED_MS, status);
    errno = ETIMEDOUT;
    return -1;
}

int helper_ask(const struct helper *h, char **output, size_t *n, int *status)
{
    *output = NULL;
    *n = 0;
    if (h->group)
        take_endings();
    int rc = run(h, output, n, status), error = errno;
    if (h->group)
        leave_endings();
    errno = error;
    return rc;
}
