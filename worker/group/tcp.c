/* worker/group/tcp.c - see tcp.h
 *
 * A rank that sends before it has received anything opens a connection. The receiver's
 * kernel completes it while the receiver computes; the receiver accepts it in its next
 * progress call and answers on the same connection, so that acknowledgements are
 * piggybacked, which saves a quarter of a short message's latency. When two ranks open
 * connections at the same time, each sends on its own and reads from both until it
 * knows which one the other uses.
 */
#include "worker/group/tcp_impl.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/sock.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    HELLO_MS = 5000, /* for an accepted connection to send its hello */
    FIRST_MS = 1     /* to wait for a new connection before the call returns */
};

int tcp_gone(const struct tcp *n, int rank, const char *how, struct ddp_err *err)
{
    char who[128];
    layout_who(n->layout, rank, who, sizeof who);
    return err_set(err, "%s has gone (%s)", who, how);
}

static void note(struct tcp *n, int rank, enum tcp_channel ch, bool send)
{
    if (n->ninterests == n->room) {
        n->room = n->room ? 2 * n->room : 8;
        n->interests = xrealloc(n->interests, n->room, sizeof *n->interests);
    }
    n->interests[n->ninterests++] = (struct interest){rank, ch, send};
}

/* ---- connecting ---- */

static const char hello_magic[8] = "ddpnet1";

struct hello tcp_hello(const struct tcp *n, int rank, int what)
{
    struct hello h = {.from = n->layout->rank, .what = what};
    memcpy(h.magic, hello_magic, sizeof h.magic);
    memcpy(h.token, n->layout->members[rank].token, sizeof h.token);
    return h;
}

/* What follows a hello. */
static const size_t report_bytes[] = {[HELLO_TELL] = sizeof(struct failure_report),
                                      [HELLO_CALL] = sizeof(struct said_calls),
                                      [HELLO_LEAVE] = sizeof(uint64_t)};

static bool hello_sound(const struct tcp *n, const struct hello *h)
{
    return token_same(h->token, n->token) &&
           memcmp(h->magic, hello_magic, sizeof h->magic) == 0 && h->from >= 0 &&
           h->from < n->layout->size && h->from != n->layout->rank && h->what >= 0 &&
           h->what <= HELLO_LEAVE;
}

/* 1 when the hello is complete, 0 when more is expected, -1 when the connection must be
 * closed. */
static int read_hello(struct tcp *n, struct accepted *c)
{
    for (;;) {
        size_t want = sizeof c->said.hello;
        if (c->got >= want) {
            if (!hello_sound(n, &c->said.hello))
                return -1;
            want += report_bytes[c->said.hello.what];
        }
        if (c->got == want)
            return 1;
        ssize_t k = recv(c->fd, (char *)&c->said + c->got, want - c->got, MSG_DONTWAIT);
        if (k > 0)
            c->got += (size_t)k;
        else if (k < 0 && errno == EINTR)
            continue;
        else if (k < 0 && errno == EAGAIN)
            return now_ms() < c->until_ms ? 0 : -1;
        else
            return -1;
    }
}

/* Polled before accept4(), which allocates a socket before it finds the queue empty;
 * that was a quarter of the time of a small all-reduce. */
static bool connection_waiting(const struct tcp *n)
{
    struct pollfd p = {.fd = n->listener, .events = POLLIN};
    return poll(&p, 1, 0) > 0;
}

static void accept_all(struct tcp *n)
{
    int fd;
    while (connection_waiting(n) &&
           (fd = accept4(n->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        struct accepted *c = xcalloc(1, sizeof *c);
        *c = (struct accepted){
            .next = n->accepted, .fd = fd, .until_ms = now_ms() + HELLO_MS};
        n->accepted = c;
    }
}

/* Takes over the descriptor unless there is a stream of this kind already. */
static void settle(struct tcp *n, struct accepted *c)
{
    const struct hello *h = &c->said.hello;
    int *in = &n->streams[h->from].in[h->what];
    if (*in < 0) {
        sock_set_keepalive(c->fd, 5, 2, 5);
        *in = c->fd;
        c->fd = -1;
    }
}

bool tcp_failure_told(struct tcp *n, int *culprit, struct ddp_err *err)
{
    accept_all(n);
    for (struct accepted **at = &n->accepted; *at;) {
        struct accepted *c = *at;
        int rc = read_hello(n, c);
        if (rc == 0) {
            at = &c->next;
            continue;
        }
        if (rc > 0 && c->said.hello.what == HELLO_TELL) {
            c->said.report.why[sizeof c->said.report.why - 1] = '\0';
            if (!n->told)
                n->report = c->said.report;
            n->told = true;
        } else if (rc > 0 && c->said.hello.what == HELLO_ASK) {
            (void)!send(c->fd, n->entered, sizeof *n->entered,
                        MSG_NOSIGNAL | MSG_DONTWAIT);
        } else if (rc > 0 && c->said.hello.what == HELLO_CALL) {
            tcp_keep_calls(n, c->said.hello.from, &c->said.calls);
        } else if (rc > 0 && c->said.hello.what == HELLO_LEAVE) {
            tcp_noted(n, c->said.hello.from)->left = 1 + c->said.entered;
        } else if (rc > 0) {
            settle(n, c);
        }
        *at = c->next;
        if (c->fd >= 0)
            close(c->fd);
        free(c);
    }
    if (n->told) {
        *culprit = n->report.culprit;
        err_set(err, "%s", n->report.why);
    }
    return n->told;
}

void tcp_await_connection(const struct tcp *n, int ms)
{
    struct pollfd p = {.fd = n->listener, .events = POLLIN};
    poll(&p, 1, n->accepted ? 1 : ms);
}

/* ---- sending and receiving ---- */

/* Make streams[rank].out[ch] usable: our own stream, the one the peer has opened, or a
 * new one. A connection on which the hello has been sent is not given up for the peer's:
 * the peer may have accepted it, and would take its end for ours. 1, 0 when it is not
 * connected yet, or -1. */
static int stream_to(struct tcp *n, int rank, enum tcp_channel ch, struct ddp_err *err)
{
    struct streams *s = &n->streams[rank];
    if (s->out[ch] >= 0)
        return 1;
    if (s->in[ch] < 0 || tcp_has_greeted(n, rank, ch))
        return tcp_connect(n, rank, ch, FIRST_MS, err);
    tcp_forget_connecting(n, rank, ch);
    s->out[ch] = s->in[ch];
    tcp_prepare_to_send(s->out[ch]);
    return 1;
}

ssize_t tcp_send(struct tcp *n, int rank, enum tcp_channel ch, const struct iovec *io,
                 int nio, struct ddp_err *err)
{
    int rc = stream_to(n, rank, ch, err);
    if (rc == 0)
        note(n, rank, ch, true);
    if (rc <= 0)
        return rc;
    int fd = n->streams[rank].out[ch];
    struct msghdr msg = {.msg_iov = (struct iovec *)(uintptr_t)io,
                         .msg_iovlen = (size_t)nio};
    for (;;) {
        ssize_t k = sendmsg(fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
        n->moves += k > 0;
        if (k >= 0)
            return k;
        if (errno == EINTR)
            continue;
        if (errno != EAGAIN)
            return tcp_gone(n, rank, strerror(errno), err);
        note(n, rank, ch, true);
        return 0;
    }
}

/* Until the first bytes show which stream the peer sends on, it may be ours. End of
 * file on ours means nothing then: the peer's own connection may still be in the accept
 * queue. */
ssize_t tcp_recv(struct tcp *n, int rank, enum tcp_channel ch, const struct iovec *io,
                 int nio, struct ddp_err *err)
{
    struct streams *s = &n->streams[rank];
    bool known = s->in[ch] >= 0;
    int fd = tcp_receiving_fd(s, ch);
    struct msghdr msg = {.msg_iov = (struct iovec *)(uintptr_t)io,
                         .msg_iovlen = (size_t)nio};
    while (fd >= 0) {
        ssize_t k = nio == 1 ? recv(fd, io->iov_base, io->iov_len, MSG_DONTWAIT)
                             : recvmsg(fd, &msg, MSG_DONTWAIT);
        n->moves += k > 0;
        if (k > 0) {
            s->in[ch] = fd;
            return k;
        }
        if (k < 0 && errno == EINTR)
            continue;
        if (!known || (k < 0 && errno == EAGAIN))
            break;
        return tcp_gone(n, rank, k == 0 ? "connection closed" : strerror(errno), err);
    }
    n->expects = n->expects || !known;
    note(n, rank, ch, false);
    return 0;
}

uint64_t tcp_moves(const struct tcp *n)
{
    return n->moves;
}

char *tcp_scratch(struct tcp *n)
{
    if (!n->turn)
        n->turn = xrealloc(NULL, TCP_TURN, 1);
    return n->turn;
}

/* ---- sleeping and looking ---- */

void tcp_begin(struct tcp *n)
{
    n->ninterests = 0;
    n->expects = false;
}

bool tcp_expects(const struct tcp *n)
{
    return n->expects;
}

bool tcp_has_stream(const struct tcp *n, int rank)
{
    return tcp_receiving_fd(&n->streams[rank], TCP_MESSAGE) >= 0;
}

bool tcp_interested(const struct tcp *n)
{
    return n->ninterests > 0;
}

void tcp_add_polled(struct tcp *n, size_t *np, int fd, short events)
{
    if (fd < 0)
        return;
    if (*np == n->polled_room) {
        n->polled_room = n->polled_room ? 2 * n->polled_room : 8;
        n->polled = xrealloc(n->polled, n->polled_room, sizeof *n->polled);
    }
    n->polled[(*np)++] = (struct pollfd){.fd = fd, .events = events};
}

void tcp_sleep(struct tcp *n, int ms)
{
    size_t np = 0;
    tcp_add_polled(n, &np, n->listener, POLLIN);
    for (const struct accepted *c = n->accepted; c; c = c->next)
        tcp_add_polled(n, &np, c->fd, POLLIN);
    for (const struct connecting *c = n->connecting; c; c = c->next) {
        tcp_add_polled(n, &np, c->fd, c->greeted ? 0 : POLLOUT);
        ms = c->greeted ? 1 : ms; /* poll() does not report acknowledgements */
    }
    for (size_t i = 0; i < n->ninterests; i++) {
        const struct interest *w = &n->interests[i];
        const struct streams *s = &n->streams[w->rank];
        tcp_add_polled(n, &np, w->send ? s->out[w->ch] : tcp_receiving_fd(s, w->ch),
                       w->send ? POLLOUT : POLLIN);
    }
    poll(n->polled, np, ms);
}

int tcp_awaited(const struct tcp *n, int *ranks, int max)
{
    int k = 0;
    for (size_t i = 0; i < n->ninterests && k < max; i++) {
        bool known = false;
        for (int j = 0; j < k; j++)
            known = known || ranks[j] == n->interests[i].rank;
        if (!known)
            ranks[k++] = n->interests[i].rank;
    }
    return k;
}

/* ---- life ---- */

struct tcp *tcp_create(const struct layout *layout, struct listeners *listeners,
                       const uint64_t *entered)
{
    struct tcp *n = xcalloc(1, sizeof *n);
    n->layout = layout;
    n->entered = entered;
    n->listener = listeners->tcp_fd;
    listeners->tcp_fd = -1;
    n->token = layout->members[layout->rank].token;
    n->streams = xcalloc((size_t)layout->size, sizeof *n->streams);
    for (int r = 0; r < layout->size; r++)
        n->streams[r] = (struct streams){{-1, -1}, {-1, -1}};
    return n;
}

void tcp_close_streams(struct tcp *n)
{
    for (int r = 0; r < n->layout->size; r++) {
        for (int ch = 0; ch < TCP_NCHANNELS; ch++) {
            int in = n->streams[r].in[ch], out = n->streams[r].out[ch];
            if (out >= 0)
                close(out);
            if (in >= 0 && in != out)
                close(in);
        }
        n->streams[r] = (struct streams){{-1, -1}, {-1, -1}};
    }
    tcp_forget_all_connecting(n);
    tcp_begin(n);
}

void tcp_destroy(struct tcp *n)
{
    if (!n)
        return;
    tcp_close_streams(n);
    while (n->accepted) {
        struct accepted *c = n->accepted;
        n->accepted = c->next;
        close(c->fd);
        free(c);
    }
    close(n->listener);
    tcp_forget_calls(n);
    free(n->noted);
    free(n->interests);
    free(n->polled);
    free(n->turn);
    free(n->streams);
    free(n);
}
