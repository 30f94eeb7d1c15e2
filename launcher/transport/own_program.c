/* launcher/transport/own_program.c - see own_program.h */
#include "launcher/transport/own_program.h"

#include "common/err.h"
#include "common/installed.h"
#include "common/scoped.h"
#include "launcher/transport/child.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

enum { PIECE = 60 << 10 };

static void on_exited(pid_t pid, int status, int64_t at_ns, const struct rusage *used,
                      void *arg)
{
    struct own_program *p = arg;
    p->pid = 0;
}

static void on_readable(evutil_socket_t fd, short what, void *arg)
{
    struct own_program *p = arg;
    char piece[PIECE];
    ssize_t n = read(p->fd, piece, sizeof piece);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0)
        loop_close_fd(&p->readable, &p->fd);
    p->out(piece, n > 0 ? (size_t)n : 0, p->arg);
}

void own_program_kill(struct own_program *p)
{
    if (p->pid > 0) {
        reap_forget(p->reap, p->pid);
        kill(p->pid, SIGKILL);
    }
    p->pid = 0;
    loop_close_fd(&p->readable, &p->fd);
}

int own_program_start(struct own_program *p, struct loop *loop, const char *name,
                      const struct strv *args, int in, struct ddp_err *err)
{
    int ends[2];
    enum child_step step;
    own_program_kill(p);
    OWNED char *path = installed_file(INSTALLED_PROGRAM, name, X_OK);
    if (!path)
        return err_set(err, "%s is not beside ddprun's programs", name);
    if (pipe2(ends, O_CLOEXEC) < 0)
        return err_errno(err, "cannot make a pipe");
    SCOPED(strv_finish) struct strv argv = {0};
    strv_push(&argv, name);
    strv_push_all(&argv, args->v);
    struct child_spec spec = {.path = path,
                              .argv = argv.v,
                              .env = environ,
                              .in = in,
                              .out = ends[1],
                              .err = -1,
                              .session = true};
    p->pid = child_spawn(&spec, &step);
    close(ends[1]);
    p->fd = ends[0];
    if (p->pid < 0) {
        p->pid = 0;
        loop_close_fd(&p->readable, &p->fd);
        return err_spawn(err, "cannot start %s", name);
    }
    reap_watch(p->reap, p->pid, on_exited, p);
    evutil_make_socket_nonblocking(p->fd);
    p->readable = loop_watch(loop, p->fd, EV_READ | EV_PERSIST, on_readable, p);
    return 0;
}
