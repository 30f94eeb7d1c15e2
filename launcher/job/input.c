/* launcher/job/input.c - see input.h
 *
 * epoll accepts pipes, sockets and terminals, but not regular files or /dev/null. These
 * are always readable: while there is credit, each loop iteration reads one piece.
 */
#define LOG_SUBSYS "input"
#include "launcher/job/input.h"

#include "common/log.h"
#include "common/mem.h"
#include "launcher/link/frame.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* between looks at whose the terminal is: 'fg' sends a signal to a stopped job only */
enum { BACKGROUND_MS = 500 };

struct input {
    struct loop *loop; /* borrowed */
    int fd;            /* borrowed */
    bool polled;       /* epoll accepts `fd` */
    bool ended;
    struct event *ready; /* owned: read event, or for files a timer of 0 */
    struct event *later; /* owned: a timer, while we are in the background */
    size_t credit;
    bool (*wanted)(void *arg);
    void (*send)(const void *data, size_t n, void *arg);
    void (*failed)(int error, void *arg);
    void *arg;
};

/* Reading the terminal from the background would stop ddprun (or fail with EIO, as
 * SIGTTIN is ignored). */
static bool is_ours(const struct input *in)
{
    pid_t owner = tcgetpgrp(in->fd);
    return owner < 0 || owner == getpgrp();
}

void input_continue(struct input *in)
{
    if (in->ended || in->credit == 0)
        return;
    if (!is_ours(in))
        loop_arm(in->later, BACKGROUND_MS);
    else if (in->polled)
        event_add(in->ready, NULL);
    else
        loop_arm(in->ready, 0);
}

static void on_ready(evutil_socket_t fd, short what, void *arg)
{
    static char piece[PIECE_MAX];
    struct input *in = arg;
    if (!in->wanted(in->arg))
        return;
    size_t n = in->credit < sizeof piece ? in->credit : sizeof piece;
    struct pollfd p = {.fd = in->fd, .events = POLLIN};
    /* not made non-blocking: the open file is shared with the parent process */
    if (!is_ours(in) || (in->polled && poll(&p, 1, 0) <= 0))
        return input_continue(in);
    ssize_t got = read(in->fd, piece, n);
    int error = got < 0 ? errno : 0;
    /* EIO of a terminal: it was given to another process group in between */
    if (error == EINTR || error == EAGAIN || (error == EIO && isatty(in->fd)))
        return input_continue(in);
    if (got <= 0) {
        log_debug("stdin has ended");
        in->ended = true;
        in->send(NULL, 0, in->arg);
        if (error && error != EBADF) /* not open for reading, as nohup leaves it */
            in->failed(error, in->arg);
        return;
    }
    in->credit -= (size_t)got;
    in->send(piece, (size_t)got, in->arg);
    input_continue(in);
}

void input_allow(struct input *in, size_t n)
{
    if (n <= in->credit)
        return;
    in->credit = n;
    input_continue(in);
}

struct input *input_create(struct loop *loop, int fd, bool (*wanted)(void *arg),
                           void (*send)(const void *data, size_t n, void *arg),
                           void (*failed)(int error, void *arg), void *arg)
{
    struct input *in = xcalloc(1, sizeof *in);
    *in = (struct input){.loop = loop,
                         .fd = fd,
                         .wanted = wanted,
                         .send = send,
                         .failed = failed,
                         .arg = arg};
    struct stat st;
    in->polled = fstat(fd, &st) == 0 &&
                 (S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode) || isatty(fd));
    in->ready = in->polled ? loop_event(loop, fd, EV_READ, on_ready, in)
                           : loop_timer(loop, on_ready, in);
    in->later = loop_timer(loop, on_ready, in);
    return in;
}

void input_destroy(struct input *in)
{
    if (!in)
        return;
    loop_free(in->ready);
    loop_free(in->later);
    free(in);
}
