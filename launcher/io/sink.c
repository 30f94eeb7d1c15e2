/* launcher/io/sink.c - see sink.h
 *
 * One contiguous queue per sink, written in large pieces at the end of a turn of the loop
 * or as soon as SINK_CHUNK bytes wait. How it is written depends on what it is:
 *
 *   files, /dev/null   write(): never waits for a reader, and poll() says nothing useful
 *   pipes, terminals   opened a second time through /proc/self/fd: an open file of our
 *                      own, on which O_NONBLOCK disturbs nobody
 *   sockets            send(MSG_DONTWAIT)
 *   the rest (a pipe or terminal of another user: it cannot be opened again)
 *                      poll(), then at most PIPE_BUF bytes: that much fits when poll()
 *                      says so, as a pipe is writable only with a whole page free
 *
 * A regular file is not opened again: two open files have two offsets, and
 * `(ddprun ...; echo done) >log` would overwrite itself.
 */
#include "launcher/io/sink.h"

#include "common/duration.h"
#include "common/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SINK_CHUNK = 256 << 10 };

enum sink_kind { SINK_FILE, SINK_OWN, SINK_SOCKET, SINK_SHARED };

struct sink {
    struct loop *loop; /* borrowed */
    const char *name;  /* borrowed */
    struct sink_events events;
    enum sink_kind kind;
    int fd;     /* borrowed, or owned when kind is SINK_OWN */
    bool owned; /* fd is ours to close */
    bool terminal;
    bool posted;  /* a write is due at the end of this turn */
    bool waiting; /* the descriptor takes nothing now; `writable` is armed */
    bool full;    /* has been above SINK_HIGH and not yet below SINK_LOW */
    bool lost, told;
    int lost_errno;
    bool midline;
    struct event *writable;  /* owned, NULL for files */
    char *queue;             /* owned */
    size_t start, end, room; /* bytes [start, end) wait */
};

/* verbs */

static ssize_t write_some(struct sink *s)
{
    const char *data = s->queue + s->start;
    size_t size = s->end - s->start;
    if (s->kind == SINK_SOCKET)
        return send(s->fd, data, size, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (s->kind == SINK_SHARED) {
        struct pollfd p = {.fd = s->fd, .events = POLLOUT};
        if (poll(&p, 1, 0) == 0) {
            errno = EAGAIN;
            return -1;
        }
        if (size > PIPE_BUF)
            size = PIPE_BUF;
    }
    return write(s->fd, data, size);
}

static void tell_lost(struct sink *s)
{
    if (s->told)
        return;
    s->told = true;
    char why[160];
    snprintf(why, sizeof why, "cannot write to %s: %s", s->name, strerror(s->lost_errno));
    s->events.lost(s->lost_errno == EPIPE || s->lost_errno == ECONNRESET, why,
                   s->events.arg);
}

static void on_turn_end(void *arg);

/* The owner is told at the end of the turn: he may be in the middle of a feed now. */
static void lose(struct sink *s, int error)
{
    s->lost = true;
    s->lost_errno = error;
    s->start = s->end = 0;
    if (s->waiting)
        event_del(s->writable);
    s->waiting = false;
    if (!s->posted)
        loop_post(s->loop, on_turn_end, s);
    s->posted = true;
}

static void write_out(struct sink *s)
{
    while (s->start < s->end && !s->lost) {
        ssize_t n = write_some(s);
        if (n >= 0) {
            s->start += (size_t)n;
        } else if (errno == EAGAIN && s->writable) {
            if (!s->waiting)
                event_add(s->writable, NULL);
            s->waiting = true;
            return;
        } else if (errno != EINTR) {
            lose(s, errno);
        }
    }
    if (s->waiting)
        event_del(s->writable);
    s->waiting = false;
    if (s->start == s->end)
        s->start = s->end = 0;
}

static void tell_drained(struct sink *s)
{
    if (s->full && sink_pending(s) < SINK_LOW) {
        s->full = false;
        s->events.drained(s->events.arg);
    }
}

char *sink_reserve(struct sink *s, size_t size)
{
    if (s->room - s->end >= size)
        return s->queue + s->end;
    if (s->start >= s->end - s->start && s->start >= size) { /* moving is cheap */
        memmove(s->queue, s->queue + s->start, s->end - s->start);
        s->end -= s->start;
        s->start = 0;
    } else {
        size_t room = s->room ? s->room : SINK_CHUNK;
        while (room - s->end < size)
            room *= 2;
        s->queue = xrealloc(s->queue, room, 1);
        s->room = room;
    }
    return s->queue + s->end;
}

void sink_commit(struct sink *s, size_t size)
{
    if (size == 0)
        return;
    s->midline = s->queue[s->end + size - 1] != '\n';
    if (s->lost)
        return;
    s->end += size;
    if (s->end - s->start >= SINK_CHUNK && !s->waiting)
        write_out(s);
    if (sink_pending(s) >= SINK_HIGH)
        s->full = true;
    if (!s->waiting && !s->posted && (s->end > s->start || s->full)) {
        s->posted = true;
        loop_post(s->loop, on_turn_end, s);
    }
}

void sink_put(struct sink *s, const void *data, size_t size)
{
    if (size == 0)
        return;
    memcpy(sink_reserve(s, size), data, size);
    sink_commit(s, size);
}

size_t sink_pending(const struct sink *s)
{
    return s->end - s->start;
}

bool sink_midline(const struct sink *s)
{
    return s->midline;
}

bool sink_terminal(const struct sink *s)
{
    return s->terminal;
}

int sink_flush(struct sink *s, int64_t deadline_ms)
{
    write_out(s);
    while (s->end > s->start && !s->lost) {
        int64_t left = deadline_ms - now_ms();
        if (left <= 0)
            return -1;
        struct pollfd p = {.fd = s->fd, .events = POLLOUT};
        poll(&p, 1, left > INT_MAX ? INT_MAX : (int)left);
        write_out(s);
    }
    return s->lost ? -1 : 0;
}

/* callbacks */

static void on_turn_end(void *arg)
{
    struct sink *s = arg;
    s->posted = false;
    if (!s->waiting)
        write_out(s);
    if (s->lost)
        tell_lost(s);
    tell_drained(s);
}

static void on_writable(evutil_socket_t fd, short what, void *arg)
{
    struct sink *s = arg;
    write_out(s);
    tell_drained(s);
}

/* create, destroy */

bool sink_redraws(int fd)
{
    const char *term = getenv("TERM");
    return isatty(fd) && term && *term && strcmp(term, "dumb") != 0;
}

static int open_again(int fd)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
}

static void choose_kind(struct sink *s, int fd)
{
    struct stat st;
    s->fd = fd;
    s->kind = SINK_FILE;
    if (fstat(fd, &st) < 0)
        return;
    if (S_ISSOCK(st.st_mode)) {
        s->kind = SINK_SOCKET;
    } else if (S_ISFIFO(st.st_mode) || isatty(fd)) {
        int own = open_again(fd);
        s->kind = own < 0 ? SINK_SHARED : SINK_OWN;
        s->owned = own >= 0;
        s->fd = own < 0 ? fd : own;
    }
}

struct sink *sink_create(struct loop *loop, int fd, const char *name,
                         const struct sink_events *events)
{
    struct sink *s = xcalloc(1, sizeof *s);
    s->loop = loop;
    s->name = name;
    s->events = *events;
    s->terminal = sink_redraws(fd);
    choose_kind(s, fd);
    if (s->kind != SINK_FILE)
        s->writable =
            event_new(loop_base(loop), s->fd, EV_WRITE | EV_PERSIST, on_writable, s);
    return s;
}

void sink_destroy(struct sink *s)
{
    if (!s)
        return;
    loop_unpost(s->loop, s);
    if (s->writable)
        event_free(s->writable);
    if (s->owned)
        close(s->fd);
    free(s->queue);
    free(s);
}

bool sink_same(int fd, int other_fd)
{
    struct stat a, b;
    return fstat(fd, &a) == 0 && fstat(other_fd, &b) == 0 && a.st_dev == b.st_dev &&
           a.st_ino == b.st_ino;
}
