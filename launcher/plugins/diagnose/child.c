/* launcher/plugins/diagnose/child.c - see child.h */
#include "launcher/plugins/diagnose/child.h"

#include "common/err.h"
#include "common/installed.h"
#include "launcher/transport/child.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

enum { PIECE = 60 << 10 };

static void on_exited(pid_t pid, int status, int64_t at_ns, const struct rusage *used,
                      void *arg)
{
    struct diagnose_child *c = arg;
    c->pid = 0;
}

static void on_readable(evutil_socket_t fd, short what, void *arg)
{
    struct diagnose_child *c = arg;
    char piece[PIECE];
    ssize_t n = read(c->fd, piece, sizeof piece);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0)
        loop_close_fd(&c->readable, &c->fd);
    c->out(piece, n > 0 ? (size_t)n : 0, c->arg);
}

void diagnose_child_kill(struct diagnose_child *c)
{
    if (c->pid > 0) {
        reap_forget(c->reap, c->pid);
        kill(c->pid, SIGKILL);
    }
    c->pid = 0;
    loop_close_fd(&c->readable, &c->fd);
}

int diagnose_child_start(struct diagnose_child *c, struct loop *loop,
                         const struct strv *args, int in, struct ddp_err *err)
{
    static const char name[] = "ddprun-diagnose";
    int ends[2];
    enum child_step step;
    diagnose_child_kill(c);
    char *path = installed_file(INSTALLED_PROGRAM, name, X_OK);
    if (!path)
        return err_set(err, "%s is not beside ddprun's programs", name);
    if (pipe2(ends, O_CLOEXEC) < 0) {
        free(path);
        return err_errno(err, "cannot make a pipe");
    }
    struct strv argv = {0};
    strv_push(&argv, name);
    strv_push_all(&argv, args->v);
    struct child_spec spec = {.path = path,
                              .argv = argv.v,
                              .env = environ,
                              .in = in,
                              .out = ends[1],
                              .err = -1,
                              .session = true};
    c->pid = child_spawn(&spec, &step);
    close(ends[1]);
    c->fd = ends[0];
    strv_finish(&argv);
    free(path);
    if (c->pid < 0) {
        c->pid = 0;
        loop_close_fd(&c->readable, &c->fd);
        return err_spawn(err, "cannot start %s", name);
    }
    reap_watch(c->reap, c->pid, on_exited, c);
    evutil_make_socket_nonblocking(c->fd);
    c->readable = loop_watch(loop, c->fd, EV_READ | EV_PERSIST, on_readable, c);
    return 0;
}
