/* rendezvous/client/exchange.c - see exchange.h
 *
 * The descriptor is non-blocking. The first byte of a reply is polled for, the rest is
 * read without polling first, so a round trip is three system calls: send, poll, recv.
 * Short replies are read through a buffer, a long value directly into its place.
 */
#include "rendezvous/client/exchange.h"

#include "common/err.h"
#include "common/mem.h"
#include "common/sock.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static int broken(struct exchange *x, struct ddp_err *err)
{
    close_fd(&x->fd);
    return err_set(err, "%s", x->why.text);
}

int exchange_break(struct exchange *x, struct ddp_err *err, const char *what)
{
    err_set(&x->why, "store at %s %s", x->peer, what);
    return broken(x, err);
}

static int peer_closed(struct exchange *x, struct ddp_err *err)
{
    x->hung_up = true;
    return exchange_break(x, err, "has closed the connection");
}

static int break_errno(struct exchange *x, struct ddp_err *err)
{
    if (errno == EPIPE || errno == ECONNRESET)
        return peer_closed(x, err);
    err_errno(&x->why, "connection to the store at %s is lost", x->peer);
    return broken(x, err);
}

/* 1: one of `events`; 0: the deadline has passed; -1 with errno. */
static int wait_for(struct exchange *x, short events)
{
    if (sock_await_extend(x->fd, events, &x->deadline) == 0)
        return 1;
    return errno == ETIMEDOUT ? 0 : -1;
}

/* After a call that has failed: 0 if it can be made again, now or after waiting; -1 with
 * `err`. `late` says what the store has not done at the deadline. */
static int retry(struct exchange *x, short events, const char *late, struct ddp_err *err)
{
    if (errno == EINTR)
        return 0;
    int ready = errno == EAGAIN ? wait_for(x, events) : -1;
    if (ready == 0)
        return exchange_break(x, err, late);
    return ready < 0 ? break_errno(x, err) : 0;
}

int exchange_begin(struct exchange *x, struct ddp_err *err)
{
    wire_clear(&x->out);
    return x->fd < 0 ? broken(x, err) : 0;
}

int exchange_send(struct exchange *x, struct ddp_err *err)
{
    if (x->out.failed) /* nothing was sent: the connection is still usable */
        return err_set(err, "not enough memory for a request to the store");
    for (size_t sent = 0; sent < x->out.n;) {
        ssize_t n = send(x->fd, x->out.data + sent, x->out.n - sent, MSG_NOSIGNAL);
        if (n >= 0)
            sent += (size_t)n;
        else if (retry(x, POLLOUT, "did not take a request in time", err) < 0)
            return -1;
    }
    return 0;
}

int exchange_poll(struct exchange *x, struct ddp_err *err)
{
    if (x->in_at < x->in_n)
        return 1;
    int ready = wait_for(x, POLLIN);
    return ready < 0 ? break_errno(x, err) : ready;
}

/* Read some bytes into `to`; their number, or -1. */
static ssize_t receive(struct exchange *x, void *to, size_t size, struct ddp_err *err)
{
    for (;;) {
        ssize_t n = recv(x->fd, to, size, 0);
        if (n > 0)
            return n;
        if (n == 0)
            return peer_closed(x, err);
        if (retry(x, POLLIN, "did not answer in time", err) < 0)
            return -1;
    }
}

int exchange_read(struct exchange *x, void *to, size_t size, struct ddp_err *err)
{
    unsigned char *at = to;
    while (size > 0) {
        size_t have = x->in_n - x->in_at;
        if (have > 0) {
            size_t n = have < size ? have : size;
            memcpy(at, x->in + x->in_at, n);
            x->in_at += n;
            at += n;
            size -= n;
            continue;
        }
        bool straight = size >= sizeof x->in;
        ssize_t n =
            straight ? receive(x, at, size, err) : receive(x, x->in, sizeof x->in, err);
        if (n < 0)
            return -1;
        if (straight) {
            at += n;
            size -= (size_t)n;
        } else {
            x->in_at = 0;
            x->in_n = (size_t)n;
        }
    }
    return 0;
}

int exchange_open(struct exchange *x, const char *host, int port, struct ddp_err *err)
{
    x->peer = xasprintf("'%s' port %d", host, port);
    x->fd = sock_connect_extend(host, port, &x->deadline, true, err);
    if (x->fd < 0)
        return err_prefix(err, "store");
    return 0;
}

void exchange_close(struct exchange *x)
{
    close_fd(&x->fd);
    wire_finish(&x->out);
    free(x->peer);
    x->peer = NULL;
}
