/* launcher/agent/worker_proc.c - see worker_proc.h
 *
 * All ranks share one read buffer: data is passed on at once.
 */
#define LOG_SUBSYS "worker"
#include "launcher/agent/worker_proc.h"

#include "common/log.h"
#include "common/mem.h"

#include <errno.h>
#include <event2/buffer.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *const state_names[] = {"new", "runs", "exited"};

struct stream {
    struct worker_proc *worker; /* borrowed: the owner */
    unsigned number;            /* 0 stdout, 1 stderr */
    int fd;                     /* owned; -1: ended */
    struct event *readable;     /* owned */
    bool paused;                /* out of credit */
};

struct worker_proc {
    struct loop *loop; /* borrowed */
    struct reap *reap; /* borrowed */
    int rank;
    enum worker_state state;
    pid_t pid, group; /* the first is 0 when it has exited */
    struct worker_events events;
    void *arg;
    bool tty;    /* its streams are a pseudo-terminal */
    int slave;   /* owned: its other side, until the process has exited; -1: none */
    int ours[3]; /* owned: our ends of its streams until it runs; -1: none */
    struct stream out[2];
    struct {
        int fd;                 /* owned; -1: none, or closed */
        struct evbuffer *wait;  /* owned: not written yet, the pipe being full */
        struct event *writable; /* owned */
        bool end;               /* end of file follows `wait` */
    } in;
};

static void worker_move(struct worker_proc *w, enum worker_state to)
{
    log_debug("rank %d: %s -> %s (pid %d)", w->rank, state_names[w->state],
              state_names[to], (int)w->pid);
    w->state = to;
}

static void stream_end(struct stream *s)
{
    if (s->fd < 0)
        return;
    loop_close_fd_later(s->worker->loop, &s->readable, &s->fd);
    s->worker->events.out(s->worker, s->number, NULL, 0, s->worker->arg);
}

static void on_readable(evutil_socket_t fd, short what, void *arg)
{
    static char piece[PIECE_MAX];
    struct stream *s = arg;
    size_t n = s->worker->events.credit(sizeof piece, s->worker->arg);
    if (n == 0) {
        s->paused = true;
        event_del(s->readable);
        return;
    }
    ssize_t got = read(s->fd, piece, n);
    if (got > 0)
        s->worker->events.out(s->worker, s->number, piece, (size_t)got, s->worker->arg);
    else if (got == 0 || (errno != EAGAIN && errno != EINTR))
        stream_end(s);
}

void worker_resume(struct worker_proc *w)
{
    for (int i = 0; i < 2; i++) {
        struct stream *s = &w->out[i];
        if (s->paused && s->fd >= 0) {
            s->paused = false;
            event_add(s->readable, NULL);
        }
    }
}

static bool stream_ended(const struct stream *s)
{
    struct pollfd p = {.fd = s->fd, .events = POLLIN};
    return poll(&p, 1, 0) > 0 && p.revents == POLLHUP;
}

static bool stream_idle(const struct stream *s)
{
    int waiting = 0;
    return !s->paused && (ioctl(s->fd, FIONREAD, &waiting) < 0 || waiting == 0);
}

void worker_cut(struct worker_proc *w, enum worker_cut which)
{
    for (int i = 0; i < 2; i++) {
        struct stream *s = &w->out[i];
        if (which == CUT_ALL || (which == CUT_IDLE ? stream_idle(s) : stream_ended(s)))
            stream_end(s);
    }
}

static void input_close(struct worker_proc *w)
{
    if (w->in.fd < 0)
        return;
    loop_close_fd(&w->in.writable, &w->in.fd);
    size_t left = evbuffer_get_length(w->in.wait);
    evbuffer_drain(w->in.wait, left);
    if (left > 0)
        w->events.taken(w, left, w->arg);
}

static void input_write(struct worker_proc *w)
{
    size_t before = evbuffer_get_length(w->in.wait);
    if (before > 0) {
        int n = evbuffer_write(w->in.wait, w->in.fd);
        if (n < 0 && errno != EAGAIN && errno != EINTR) {
            input_close(w); /* EPIPE: the rank has closed its stdin */
            return;
        }
        if (n > 0)
            w->events.taken(w, (size_t)n, w->arg);
    }
    if (evbuffer_get_length(w->in.wait) > 0) {
        event_add(w->in.writable, NULL);
    } else if (w->in.end) {
        if (w->tty)
            pty_end_input(w->in.fd);
        input_close(w);
    }
}

static void on_writable(evutil_socket_t fd, short what, void *arg)
{
    input_write(arg);
}

void worker_input(struct worker_proc *w, const void *data, size_t n)
{
    if (w->in.fd < 0) {
        if (n > 0)
            w->events.taken(w, n, w->arg);
        return;
    }
    if (n == 0)
        w->in.end = true;
    if (n > 0)
        evbuffer_add(w->in.wait, data, n);
    input_write(w);
}

void worker_close_ends(int *fds, size_t n)
{
    for (size_t i = 0; i < n; i++)
        close_fd(&fds[i]);
}

/* RLIMIT_CPU, at which the kernel kills a process, if it has used that much; else 0. */
static uint64_t cpu_max_s(const struct rusage *used)
{
    struct rlimit limit;
    double used_s = (double)(used->ru_utime.tv_sec + used->ru_stime.tv_sec) +
                    (double)(used->ru_utime.tv_usec + used->ru_stime.tv_usec) / 1e6;
    /* the limit counts ticks, of which a busy machine's processes use only a part */
    bool over = getrlimit(RLIMIT_CPU, &limit) == 0 && limit.rlim_max != RLIM_INFINITY &&
                used_s > 0.7 * (double)limit.rlim_max;
    return over ? limit.rlim_max : 0;
}

static void on_exit_of(pid_t pid, int status, int64_t at_ns, const struct rusage *used,
                       void *arg)
{
    struct worker_proc *w = arg;
    worker_move(w, WORKER_EXITED);
    w->pid = 0;
    input_close(w);
    worker_close_ends(&w->slave, 1);
    struct msg_exit how = {.rank = (uint32_t)w->rank,
                           .status = status,
                           .at_ns = at_ns,
                           .peak_kib = (uint64_t)used->ru_maxrss,
                           .cpu_max_s = cpu_max_s(used)};
    w->events.exited(w, &how, w->arg);
}

/* Our end is non-blocking, the rank's is not: O_NONBLOCK is per end of a pipe. */
static int make_pipe(int *ours, int *theirs, bool we_write)
{
    int p[2];
    if (pipe2(p, O_CLOEXEC) < 0)
        return -1;
    *ours = p[we_write];
    *theirs = p[!we_write];
    return fcntl(*ours, F_SETFL, O_NONBLOCK);
}

static void watch_streams(struct worker_proc *w)
{
    for (unsigned i = 0; i < 2; i++) {
        struct stream *s = &w->out[i];
        *s = (struct stream){.worker = w, .number = i, .fd = w->ours[1 + i]};
        if (s->fd < 0)
            continue;
        s->readable = loop_watch(w->loop, s->fd, EV_READ | EV_PERSIST, on_readable, s);
    }
    if (w->ours[0] >= 0) {
        w->in.fd = w->ours[0];
        w->in.wait = evbuffer_new();
        w->in.writable = loop_event(w->loop, w->in.fd, EV_WRITE, on_writable, w);
    }
    for (size_t i = 0; i < ARRAY_LEN(w->ours); i++)
        w->ours[i] = -1;
}

/* Input is written to a descriptor of its own, as it is closed before the output. A rank
 * that closes its streams shall not end them: the master would be closed, which hangs its
 * session up. */
static int open_tty(struct worker_proc *w, bool input, const struct pty_size *size,
                    int theirs[3])
{
    w->tty = true;
    if (pty_open(size, &w->ours[1], &theirs[0]) < 0)
        return -1;
    for (int i = 1; i < 3; i++) {
        if ((theirs[i] = fcntl(theirs[0], F_DUPFD_CLOEXEC, 0)) < 0)
            return -1;
    }
    if ((w->slave = fcntl(theirs[0], F_DUPFD_CLOEXEC, 0)) < 0)
        return -1;
    return input && (w->ours[0] = fcntl(w->ours[1], F_DUPFD_CLOEXEC, 0)) < 0 ? -1 : 0;
}

int worker_open(struct worker_proc *w, bool input, const struct pty_size *tty,
                int theirs[3])
{
    theirs[0] = theirs[1] = theirs[2] = -1;
    if (tty && open_tty(w, input, tty, theirs) == 0)
        return 0;
    if (!tty && (!input || make_pipe(&w->ours[0], &theirs[0], true) == 0) &&
        make_pipe(&w->ours[1], &theirs[1], false) == 0 &&
        make_pipe(&w->ours[2], &theirs[2], false) == 0)
        return 0;
    worker_close_ends(theirs, 3);
    return -1;
}

void worker_adopt(struct worker_proc *w, pid_t pid, int pidfd)
{
    w->pid = w->group = pid;
    worker_move(w, WORKER_RUNS);
    watch_streams(w);
    if (pidfd >= 0)
        reap_watch_started(w->reap, w->pid, pidfd, on_exit_of, w);
    else
        reap_watch(w->reap, w->pid, on_exit_of, w);
}

void worker_signal(struct worker_proc *w, int sig)
{
    if (w->state == WORKER_RUNS)
        kill(-w->pid, sig);
}

void worker_resize(struct worker_proc *w, const struct pty_size *size)
{
    if (w->tty && w->out[0].fd >= 0)
        pty_resize(w->out[0].fd, size);
}

int worker_rank(const struct worker_proc *w)
{
    return w->rank;
}

enum worker_state worker_state(const struct worker_proc *w)
{
    return w->state;
}

pid_t worker_pid(const struct worker_proc *w)
{
    return w->pid;
}

pid_t worker_group(const struct worker_proc *w)
{
    return w->group;
}

bool worker_drained(const struct worker_proc *w)
{
    return w->out[0].fd < 0 && w->out[1].fd < 0;
}

struct worker_proc *worker_create(struct loop *loop, struct reap *reap, int rank,
                                  const struct worker_events *events, void *arg)
{
    struct worker_proc *w = xcalloc(1, sizeof *w);
    *w = (struct worker_proc){
        .loop = loop, .reap = reap, .rank = rank, .events = *events, .arg = arg};
    w->out[0].fd = w->out[1].fd = w->in.fd = w->slave = -1;
    w->ours[0] = w->ours[1] = w->ours[2] = -1;
    return w;
}

void worker_destroy(struct worker_proc *w)
{
    if (!w)
        return;
    if (w->pid > 0)
        reap_forget(w->reap, w->pid);
    for (int i = 0; i < 2; i++)
        loop_close_fd(&w->out[i].readable, &w->out[i].fd);
    loop_close_fd(&w->in.writable, &w->in.fd);
    if (w->in.wait)
        evbuffer_free(w->in.wait);
    worker_close_ends(w->ours, ARRAY_LEN(w->ours));
    worker_close_ends(&w->slave, 1);
    free(w);
}
