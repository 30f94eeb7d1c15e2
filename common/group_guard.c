/* common/group_guard.c - see group_guard.h */
#include "common/group_guard.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <sys/socket.h>
#include <unistd.h>

extern char **environ;

/* The end of its input, without the line that group_guard_end() sends, is our end. */
static const char *const guard[] = {"sh", "-c", "read x && exit; kill -9 0", NULL};

static int spawn(struct group_guard *g, int in)
{
    sigset_t all, none;
    posix_spawnattr_t attr;
    posix_spawn_file_actions_t files;
    sigfillset(&all);
    sigemptyset(&none);
    posix_spawnattr_init(&attr);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK |
                                        POSIX_SPAWN_SETSIGDEF);
    posix_spawnattr_setsigdefault(&attr, &all);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, in, STDIN_FILENO);
    posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&files, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    errno = posix_spawn(&g->pid, "/bin/sh", &files, &attr,
                        (char *const *)(uintptr_t)guard, environ);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attr);
    return errno ? -1 : 0;
}

int group_guard_start(struct group_guard *g)
{
    int pair[2];
    *g = (struct group_guard){.fd = -1};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return -1;
    int rc = spawn(g, pair[1]), error = errno;
    close(pair[1]);
    if (rc == 0)
        g->fd = pair[0];
    else
        close(pair[0]);
    errno = error;
    return rc;
}

void group_guard_end(struct group_guard *g)
{
    if (g->fd < 0)
        return;
    send(g->fd, "\n", 1, MSG_NOSIGNAL);
    close(g->fd);
    g->fd = -1;
}
