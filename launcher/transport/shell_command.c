/* launcher/transport/shell_command.c - see shell_command.h */
#include "launcher/transport/shell_command.h"

#include "common/err.h"
#include "common/group_guard.h"
#include "common/limit.h"
#include "common/mem.h"
#include "common/signame.h"
#include "common/tail.h"
#include "launcher/transport/child.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PIECE = 8192, SAID_MOST = 4096, LINE_MOST = 200 };

extern char **environ;

struct shell_command {
    struct reap *reap;        /* borrowed */
    pid_t pid;                /* 0: it has ended */
    struct group_guard guard; /* owned: leads its process group */
    struct stream {
        struct shell_command *c; /* borrowed: owner */
        int fd;                  /* -1: closed */
        struct event *event;     /* owned */
    } out, said;                 /* its stdout and stderr */
    char *data;                  /* owned: its stdout */
    size_t n, most;
    struct tail last;    /* owned: the last part of its stderr */
    struct limit *limit; /* owned */
    int64_t limit_ms;
    bool late, too_long;
    shell_command_fn ended;
    void *arg;
};

static void stop(struct shell_command *c)
{
    if (c->pid > 0)
        kill(-c->guard.pid, SIGKILL);
}

/* Of stdout the first bytes are kept, and more end the command; of stderr the last. */
static void keep(struct shell_command *c, bool is_out, const char *data, size_t size)
{
    if (!is_out) {
        tail_feed(&c->last, SAID_MOST, data, size);
        return;
    }
    if (c->n + size > c->most) {
        c->too_long = true;
        stop(c);
        return;
    }
    c->data = xrealloc(c->data, c->n + size + 1, 1);
    memcpy(c->data + c->n, data, size);
    c->n += size;
    c->data[c->n] = '\0';
}

/* False: nothing is there now, or it is the end. */
static bool read_piece(struct stream *s)
{
    char piece[PIECE];
    ssize_t got = s->fd < 0 ? 0 : read(s->fd, piece, sizeof piece);
    if (got < 0 && (errno == EINTR || errno == EAGAIN))
        return errno == EINTR;
    if (got <= 0) {
        if (s->event)
            event_del(s->event);
        return false;
    }
    keep(s->c, s == &s->c->out, piece, (size_t)got);
    return true;
}

static void on_readable(evutil_socket_t fd, short what, void *arg)
{
    read_piece(arg);
}

static void on_limit(void *arg)
{
    struct shell_command *c = arg;
    c->late = true;
    stop(c);
}

/* ": 'no GPU'": the last line of its stderr; malloc'ed. */
static char *last_line(const struct shell_command *c)
{
    char last[LINE_MOST + 1];
    tail_last_line(&c->last, SAID_MOST, last, sizeof last);
    for (char *p = last; *p; p++)
        *p = iscntrl((unsigned char)*p) ? '?' : *p; /* it goes to the user's terminal */
    return last[0] ? xasprintf(": '%s'", last) : xstrdup("");
}

/* How it failed, malloc'ed; NULL: it did not. */
static char *trouble_of(const struct shell_command *c, int status)
{
    OWNED char *line = last_line(c);
    if (c->late)
        return xasprintf("had not ended after %.4g s%s", (double)c->limit_ms / 1e3, line);
    if (c->too_long)
        return xasprintf("printed more than %zu KiB", c->most >> 10);
    if (WIFSIGNALED(status))
        return xasprintf("died of %s%s", signal_name(WTERMSIG(status)), line);
    if (WEXITSTATUS(status) != 0)
        return xasprintf("exited with status %d%s", WEXITSTATUS(status), line);
    return NULL;
}

static void on_ended(pid_t pid, int status, int64_t at_ns, const struct rusage *used,
                     void *arg)
{
    struct shell_command *c = arg;
    c->pid = 0;
    group_guard_end(&c->guard);
    while (!c->too_long && read_piece(&c->out))
        ;
    for (int i = 0; i < SAID_MOST / PIECE + 1 && read_piece(&c->said); i++)
        ;
    limit_stop(c->limit);
    OWNED char *trouble = trouble_of(c, status);
    OWNED char *out = c->data;
    size_t n = c->n;
    c->data = NULL;
    c->ended(trouble, out ? out : "", n, c->arg);
}

static void stream_open(struct stream *s, struct loop *loop, int fd)
{
    s->fd = fd;
    fcntl(fd, F_SETFL, O_NONBLOCK);
    s->event = loop_watch(loop, fd, EV_READ | EV_PERSIST, on_readable, s);
}

static int spawn(struct shell_command *c, const struct shell_command_spec *spec,
                 struct loop *loop, int *out, int *said)
{
    enum child_step step;
    TRY(group_guard_start(&c->guard));
    const char *argv[] = {"sh", "-c", spec->text, NULL};
    const struct child_spec child = {.path = "/bin/sh",
                                     .argv = (char *const *)(uintptr_t)argv,
                                     .env = spec->env ? spec->env : environ,
                                     .dir = spec->dir,
                                     .in = -1,
                                     .out = out[1],
                                     .err = said[1],
                                     .join = c->guard.pid};
    stream_open(&c->out, loop, out[0]);
    stream_open(&c->said, loop, said[0]);
    c->pid = child_spawn(&child, &step);
    return c->pid < 0 ? -1 : 0;
}

struct shell_command *shell_command_start(struct loop *loop, struct reap *reap,
                                          const struct shell_command_spec *spec,
                                          shell_command_fn ended, void *arg,
                                          struct ddp_err *err)
{
    int out[2] = {-1, -1}, said[2] = {-1, -1};
    struct shell_command *c = xcalloc(1, sizeof *c);
    *c = (struct shell_command){.reap = reap,
                                .limit_ms = spec->limit_ms,
                                .out = {.c = c, .fd = -1},
                                .said = {.c = c, .fd = -1},
                                .most = spec->most,
                                .guard = {.fd = -1},
                                .ended = ended,
                                .arg = arg};
    c->limit = limit_create(loop, on_limit, c);
    int rc = pipe2(out, O_CLOEXEC) == 0 && pipe2(said, O_CLOEXEC) == 0
                 ? spawn(c, spec, loop, out, said)
                 : -1;
    if (rc < 0)
        err_spawn(err, "cannot run '%.80s'", spec->text);
    int theirs[] = {out[1], said[1], c->out.fd < 0 ? out[0] : -1,
                    c->said.fd < 0 ? said[0] : -1};
    for (size_t i = 0; i < ARRAY_LEN(theirs); i++)
        close_fd(&theirs[i]);
    if (rc < 0) {
        c->pid = 0;
        shell_command_destroy(c);
        return NULL;
    }
    reap_watch(reap, c->pid, on_ended, c);
    limit_arm(c->limit, spec->limit_ms);
    return c;
}

pid_t shell_command_group(const struct shell_command *c)
{
    return c && c->pid > 0 ? c->guard.pid : 0;
}

bool shell_command_has(const struct shell_command *c, pid_t pid)
{
    return shell_command_group(c) > 0 && (pid == c->pid || pid == c->guard.pid);
}

void shell_command_destroy(struct shell_command *c)
{
    if (!c)
        return;
    if (c->pid > 0) {
        reap_forget(c->reap, c->pid);
        stop(c);
    }
    group_guard_end(&c->guard);
    loop_close_fd(&c->out.event, &c->out.fd);
    loop_close_fd(&c->said.event, &c->said.fd);
    free(c->data);
    free(c->last.ring);
    limit_destroy(c->limit);
    free(c);
}
