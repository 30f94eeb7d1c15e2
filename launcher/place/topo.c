/* launcher/place/topo.c - see topo.h */
#include "launcher/place/topo.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef DDPRUN_LIBEXECDIR
#define DDPRUN_LIBEXECDIR "/usr/libexec/ddprun"
#endif

#define PROGRAM    "ddprun-topo"
#define TIMEOUT_MS 10000
#define TEXT_MAX   (1 << 20) /* some 50,000 CPUs */

extern char **environ;

/* Where the program is, in `path`. */
static int find_program(char path[PATH_MAX], struct ddp_err *err)
{
    static const char *const beside[] = {"", "/..", "/../libexec/ddprun"};
    char self[PATH_MAX - 64];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(self, '/');
    if (slash)
        *slash = '\0';
    for (size_t i = 0; slash && i < ARRAY_LEN(beside); i++) {
        snprintf(path, PATH_MAX, "%s%s/" PROGRAM, self, beside[i]);
        if (access(path, X_OK) == 0)
            return 0;
    }
    snprintf(path, PATH_MAX, "%s/" PROGRAM, DDPRUN_LIBEXECDIR);
    if (access(path, X_OK) == 0)
        return 0;
    return err_set(err,
                   "cannot bind: '" PROGRAM "' is neither beside '%.200s' nor in '%s'",
                   self, DDPRUN_LIBEXECDIR);
}

/* Everything that comes out of `fd` until it is closed; -1 when that takes too long. */
static int drain(int fd, char *text, size_t size)
{
    int64_t deadline = now_ms() + TIMEOUT_MS;
    size_t n = 0;
    for (;;) {
        int64_t left = deadline - now_ms();
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (left <= 0 || n == size - 1)
            return -1;
        int ready = poll(&p, 1, (int)left);
        if (ready <= 0)
            continue;
        ssize_t got = read(fd, text + n, size - 1 - n);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        n += (size_t)got;
    }
    text[n] = '\0';
    return 0;
}

/* Run the program with its output in a pipe. Returns its pid and the end to read. */
static pid_t start(const char *path, int *out, struct ddp_err *err)
{
    int fds[2];
    pid_t pid;
    char *const argv[] = {(char[]){PROGRAM}, NULL};
    posix_spawn_file_actions_t actions;
    if (pipe2(fds, O_CLOEXEC) < 0)
        return err_errno(err, "cannot bind: no pipe");
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, fds[1], 1);
    int rc = posix_spawn(&pid, path, &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(fds[1]);
    if (rc != 0) {
        close(fds[0]);
        errno = rc;
        return err_errno(err, "cannot bind: cannot run '%.200s'", path);
    }
    *out = fds[0];
    return pid;
}

int topo_load(struct topo *t, struct ddp_err *err)
{
    char path[PATH_MAX];
    int fd = -1, status = 0;
    if (find_program(path, err) < 0)
        return -1;
    pid_t pid = start(path, &fd, err);
    if (pid < 0)
        return -1;
    char *text = xcalloc(TEXT_MAX, 1);
    int rc = drain(fd, text, TEXT_MAX);
    close(fd);
    if (rc < 0)
        kill(pid, SIGKILL);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (rc < 0)
        err_set(err, "cannot bind: '%.200s' did not end within %d s", path,
                TIMEOUT_MS / 1000);
    else if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        rc = err_set(err, "cannot bind: '%.200s' failed", path);
    else
        rc = topo_parse(text, t, err);
    free(text);
    return rc;
}

int topo_parse(const char *text, struct topo *t, struct ddp_err *err)
{
    int lines = 0;
    for (const char *p = text; (p = strchr(p, '\n')); p++)
        lines++;
    t->pus = xcalloc((size_t)lines + 1, sizeof *t->pus);
    t->npus = 0;
    for (const char *p = text; *p; p = strchr(p, '\n') + 1) {
        struct topo_pu *pu = &t->pus[t->npus];
        if (sscanf(p, "%d %d %d %d", &pu->cpu, &pu->core, &pu->numa, &pu->socket) != 4 ||
            pu->cpu < 0 || pu->cpu > IDSET_MAX || !strchr(p, '\n')) {
            topo_finish(t);
            return err_set(err, "cannot bind: '%.*s' does not describe a CPU",
                           (int)strcspn(p, "\n"), p);
        }
        t->npus++;
    }
    if (t->npus == 0) {
        topo_finish(t);
        return err_set(err, "cannot bind: no CPU found");
    }
    return 0;
}

void topo_restrict(struct topo *t, const struct idset *allowed)
{
    int n = 0;
    for (int i = 0; i < t->npus; i++) {
        if (idset_has(allowed, t->pus[i].cpu))
            t->pus[n++] = t->pus[i];
    }
    t->npus = n;
}

void topo_finish(struct topo *t)
{
    free(t->pus);
    *t = (struct topo){0};
}
