/* launcher/transport/transport_proc.c - see transport_proc.h */
#include "launcher/transport/transport_proc.h"

#include "common/mem.h"
#include "common/secret.h"
#include "common/sock.h"
#include "launcher/transport/child.h"
#include "launcher/transport/package.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { TEXT_MAX = 4096, ANSWER_MAX = 64 };

struct transport_proc {
    struct reap *reap; /* borrowed */
    struct transport_proc_events events;
    void *arg;
    pid_t pid;                     /* 0: it has ended */
    int in;                        /* owned: our end of its stdin; -1 */
    struct event *writable;        /* owned: while there is input to write */
    const struct package *package; /* borrowed: written before the input, if requested */
    size_t package_left;           /* bytes of it */
    char *input;                   /* owned, wiped: the input; NULL: all written */
    size_t ninput, written;
    struct event *answer;   /* owned: reads its stdout */
    char tail[ANSWER_MAX];  /* the end of its stdout */
    int err;                /* owned: its stderr; -1 */
    struct event *readable; /* owned */
    char text[TEXT_MAX + 1];
    size_t ntext, delivered; /* bytes of `text`; bytes delivered as lines */
};

/* --- its input ---------------------------------------------------------------------- */

static void drop_input(struct transport_proc *c)
{
    if (c->input)
        secret_wipe(c->input, c->ninput);
    free(c->input);
    c->input = NULL;
    loop_free(c->writable);
    c->writable = NULL;
}

static void stop_answers(struct transport_proc *c)
{
    loop_free(c->answer);
    c->answer = NULL;
}

void transport_proc_close_stdin(struct transport_proc *c)
{
    drop_input(c);
    stop_answers(c);
    close_fd(&c->in);
}

/* The input fits the pipe except for thousands of hosts; a package does not. */
static void on_writable(evutil_socket_t fd, short what, void *arg)
{
    struct transport_proc *c = arg;
    bool first = c->package_left > 0;
    const char *from = first ? c->package->bytes + c->package->n - c->package_left
                             : c->input + c->written;
    ssize_t n = write(c->in, from, first ? c->package_left : c->ninput - c->written);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n > 0 && first)
        c->package_left -= (size_t)n;
    else if (n > 0)
        c->written += (size_t)n;
    if (n <= 0 || c->written == c->ninput) /* EPIPE: its stderr has the reason */
        drop_input(c);
}

static void start_input(struct transport_proc *c)
{
    if (event_add(c->writable, NULL) < 0)
        abort(); /* as mem.h does when memory is gone */
    on_writable(c->in, EV_WRITE, c);
}

static bool tail_is(const struct transport_proc *c, const char *line)
{
    size_t n = strlen(line);
    return memcmp(c->tail + ANSWER_MAX - n, line, n) == 0;
}

/* Output before one of our marker lines is ignored, and none follows a marker before we
 * have written something. Read byte by byte: the output is short. */
static void on_answer(evutil_socket_t fd, short what, void *arg)
{
    struct transport_proc *c = arg;
    char byte;
    ssize_t got;
    while ((got = read(c->in, &byte, 1)) == 1) {
        memmove(c->tail, c->tail + 1, ANSWER_MAX - 1);
        c->tail[ANSWER_MAX - 1] = byte;
        if (tail_is(c, TRANSPORT_PROC_LINK)) {
            int link = c->in;
            stop_answers(c);
            drop_input(c);
            c->in = -1;
            c->events.linked(link, c->arg);
            return;
        }
        bool wanted = tail_is(c, PACKAGE_WANTED);
        if (c->package && c->writable && (wanted || tail_is(c, PACKAGE_IS_THERE))) {
            c->package_left = wanted ? c->package->n : 0;
            c->package = wanted ? c->package : NULL;
            start_input(c);
        }
    }
    if (got == 0 || (errno != EAGAIN && errno != EINTR))
        stop_answers(c); /* SIGCHLD reports its end */
}

/* --- its stderr --------------------------------------------------------------------- */

static void tell_lines(struct transport_proc *c, bool rest)
{
    char *end;
    while ((end = strpbrk(c->text + c->delivered, "\r\n")) ||
           (rest && c->text[c->delivered] && (end = c->text + c->ntext))) {
        OWNED char *line =
            xstrndup(c->text + c->delivered, (size_t)(end - c->text) - c->delivered);
        c->delivered = (size_t)(end - c->text) + (*end != '\0');
        if (line[0])
            c->events.line(line, c->arg);
    }
}

/* Returns whether there may be more to read. */
static bool read_stderr(struct transport_proc *c)
{
    char piece[1024];
    ssize_t n = read(c->err, piece, sizeof piece);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (n <= 0) {
        loop_close_fd(&c->readable, &c->err);
        return false;
    }
    size_t add = (size_t)n;
    size_t drop = c->ntext + add > TEXT_MAX ? c->ntext + add - TEXT_MAX : 0;
    c->ntext -= drop;
    c->delivered = c->delivered > drop ? c->delivered - drop : 0;
    memmove(c->text, c->text + drop, c->ntext);
    memcpy(c->text + c->ntext, piece, add);
    c->ntext += add;
    c->text[c->ntext] = '\0';
    tell_lines(c, false);
    return true;
}

static void on_readable(evutil_socket_t fd, short what, void *arg)
{
    read_stderr(arg);
}

static void on_exit_of(pid_t pid, int status, int64_t at_ns, const struct rusage *used,
                       void *arg)
{
    struct transport_proc *c = arg;
    c->pid = 0;
    while (c->err >= 0 && read_stderr(c))
        continue;
    tell_lines(c, true);
    loop_close_fd(&c->readable, &c->err);
    transport_proc_close_stdin(c);
    c->events.ended(status, c->arg);
}

/* --- start and end ------------------------------------------------------------------ */

static void listen_to(struct transport_proc *c, struct loop *loop, bool talks)
{
    sock_set_nonblock(c->err, true);
    c->readable = loop_watch(loop, c->err, EV_READ | EV_PERSIST, on_readable, c);
    if (!c->input)
        return;
    sock_set_nonblock(c->in, true);
    if (talks)
        c->answer = loop_watch(loop, c->in, EV_READ | EV_PERSIST, on_answer, c);
    c->writable = loop_event(loop, c->in, EV_WRITE | EV_PERSIST, on_writable, c);
    if (!c->package)
        start_input(c);
}

/* Make its stdin, its stdout if it talks, and our end of them. */
static int make_ends(const struct transport_proc_spec *spec, int in[2])
{
    if (!spec->input)
        return 0;
    return spec->talks ? socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, in)
                       : pipe2(in, O_CLOEXEC);
}

struct transport_proc *transport_proc_create(struct loop *loop, struct reap *reap,
                                             const struct transport_proc_spec *spec,
                                             const struct transport_proc_events *events,
                                             void *arg)
{
    int in[2] = {-1, -1}, err[2] = {-1, -1};
    enum child_step step;
    struct transport_proc *c = xcalloc(1, sizeof *c);
    *c = (struct transport_proc){.reap = reap, .events = *events, .arg = arg};
    if (make_ends(spec, in) == 0 && pipe2(err, O_CLOEXEC) == 0) {
        const struct child_spec child = {.path = spec->path,
                                         .argv = spec->argv,
                                         .env = spec->env,
                                         .in = in[0],
                                         .out = spec->input && spec->talks ? in[0] : -1,
                                         .err = err[1],
                                         .session = true};
        c->pid = child_spawn(&child, &step);
    } else {
        c->pid = -1;
    }
    int error = errno;
    close(in[0]);
    close(err[1]);
    c->in = in[1];
    c->err = err[0];
    if (c->pid < 0) {
        close(c->err);
        transport_proc_close_stdin(c);
        free(c);
        errno = error;
        return NULL;
    }
    c->package = spec->package;
    c->input = spec->input ? xstrdup(spec->input) : NULL;
    c->ninput = spec->input ? strlen(spec->input) : 0;
    reap_watch(reap, c->pid, on_exit_of, c);
    listen_to(c, loop, spec->input && spec->talks);
    return c;
}

void transport_proc_destroy(struct transport_proc *c)
{
    if (!c)
        return;
    if (c->pid > 0) {
        kill(c->pid, SIGKILL);
        reap_forget(c->reap, c->pid);
    }
    transport_proc_close_stdin(c);
    loop_close_fd(&c->readable, &c->err);
    free(c);
}

void transport_proc_signal(struct transport_proc *c, int sig)
{
    if (c->pid > 0)
        kill(c->pid, sig);
}

pid_t transport_proc_pid(const struct transport_proc *c)
{
    return c->pid;
}

const char *transport_proc_stderr(const struct transport_proc *c)
{
    return c->text;
}
