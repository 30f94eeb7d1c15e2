/* worker/group/net.c - see net.h
 *
 * Who has something to say and has heard nothing yet opens a connection. That does not
 * need the other's help: its kernel takes the connection while it computes, and it is
 * accepted the next time it looks for something. Who has been spoken to answers by the
 * same connection, so that acknowledgements travel with the answers, which is a quarter
 * of the time of a short message. Two that first speak at the same time do not have to
 * agree on one of two connections: each keeps to its own, and listens to both until it
 * knows by which the other one speaks.
 */
#include "worker/group/net_impl.h"

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
    HELLO_MS = 5000, /* for a newcomer to say who it is */
    FIRST_MS = 1     /* for a connection to be made in the call that begins it */
};

int net_gone(const struct net *n, int rank, const char *how, struct ddp_err *err)
{
    char who[128];
    layout_who(n->layout, rank, who, sizeof who);
    return err_set(err, "%s has gone (%s)", who, how);
}

static void note(struct net *n, int rank, enum net_channel ch, bool send)
{
    if (n->ninterests == n->room) {
        n->room = n->room ? 2 * n->room : 8;
        n->interests = xrealloc(n->interests, n->room, sizeof *n->interests);
    }
    n->interests[n->ninterests++] = (struct interest){rank, ch, send};
}

/* ---- connecting ---- */

static const char hello_magic[8] = "ddpnet1";

struct hello net_hello(const struct net *n, int rank, int what)
{
    struct hello h = {.from = n->layout->rank, .what = what};
    memcpy(h.magic, hello_magic, sizeof h.magic);
    memcpy(h.token, n->layout->members[rank].token, sizeof h.token);
    return h;
}

static bool hello_sound(const struct net *n, const struct hello *h)
{
    unsigned differ = 0;
    for (size_t i = 0; i < TOKEN_BYTES; i++)
        differ |= h->token[i] ^ n->token[i];
    return !differ && memcmp(h->magic, hello_magic, sizeof h->magic) == 0 &&
           h->from >= 0 && h->from < n->layout->size && h->from != n->layout->rank &&
           h->what >= 0 && h->what <= HELLO_LEAVE;
}

/* 1 when a newcomer has said all, 0 when more is to come, -1 when it is to be closed. */
static int listen_to(struct net *n, struct newcomer *c)
{
    for (;;) {
        size_t want = sizeof c->said.hello;
        if (c->got >= want) {
            if (!hello_sound(n, &c->said.hello))
                return -1;
            if (c->said.hello.what == HELLO_TELL)
                want += sizeof c->said.news;
            else if (c->said.hello.what == HELLO_CALL)
                want += sizeof c->said.calls;
            else if (c->said.hello.what == HELLO_LEAVE)
                want += sizeof c->said.entered;
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

/* Asked at every call of the user; accept4() makes a socket before it finds nobody there,
 * which took a quarter of the time of a small all-reduce. */
static bool somebody_knocks(const struct net *n)
{
    struct pollfd p = {.fd = n->listener, .events = POLLIN};
    return poll(&p, 1, 0) > 0;
}

static void accept_all(struct net *n)
{
    int fd;
    while (somebody_knocks(n) &&
           (fd = accept4(n->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        struct newcomer *c = xcalloc(1, sizeof *c);
        *c = (struct newcomer){
            .next = n->newcomers, .fd = fd, .until_ms = now_ms() + HELLO_MS};
        n->newcomers = c;
    }
}

/* Takes the newcomer's descriptor when its stream is the first of its kind. */
static void settle(struct net *n, struct newcomer *c)
{
    const struct hello *h = &c->said.hello;
    int *in = &n->streams[h->from].in[h->what];
    if (*in < 0) {
        sock_set_keepalive(c->fd, 5, 2, 5);
        *in = c->fd;
        c->fd = -1;
    }
}

bool net_told(struct net *n, int *culprit, struct ddp_err *err)
{
    accept_all(n);
    for (struct newcomer **at = &n->newcomers; *at;) {
        struct newcomer *c = *at;
        int rc = listen_to(n, c);
        if (rc == 0) {
            at = &c->next;
            continue;
        }
        if (rc > 0 && c->said.hello.what == HELLO_TELL) {
            c->said.news.why[sizeof c->said.news.why - 1] = '\0';
            if (!n->told)
                n->news = c->said.news;
            n->told = true;
        } else if (rc > 0 && c->said.hello.what == HELLO_ASK) {
            (void)!send(c->fd, n->entered, sizeof *n->entered,
                        MSG_NOSIGNAL | MSG_DONTWAIT);
        } else if (rc > 0 && c->said.hello.what == HELLO_CALL) {
            net_keep_calls(n, c->said.hello.from, &c->said.calls);
        } else if (rc > 0 && c->said.hello.what == HELLO_LEAVE) {
            net_keep_leaver(n, c->said.hello.from, c->said.entered);
        } else if (rc > 0) {
            settle(n, c);
        }
        *at = c->next;
        if (c->fd >= 0)
            close(c->fd);
        free(c);
    }
    if (n->told) {
        *culprit = n->news.culprit;
        err_set(err, "%s", n->news.why);
    }
    return n->told;
}

void net_await_news(const struct net *n, int ms)
{
    struct pollfd p = {.fd = n->listener, .events = POLLIN};
    poll(&p, 1, n->newcomers ? 1 : ms);
}

/* ---- sending and receiving ---- */

/* The stream to a rank: mine, or the one by which it speaks to me, or else a new one. 1,
 * 0 when it is not connected yet, or -1. */
static int stream_to(struct net *n, int rank, enum net_channel ch, struct ddp_err *err)
{
    struct streams *s = &n->streams[rank];
    if (s->out[ch] >= 0)
        return 1;
    if (s->in[ch] < 0)
        return net_connect(n, rank, ch, FIRST_MS, err);
    net_forget_connecting(n, rank, ch);
    s->out[ch] = s->in[ch];
    net_prepare_to_send(s->out[ch]);
    return 1;
}

ssize_t net_send(struct net *n, int rank, enum net_channel ch, const struct iovec *io,
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
            return net_gone(n, rank, strerror(errno), err);
        note(n, rank, ch, true);
        return 0;
    }
}

/* Until it is known by which stream a rank speaks, it may be by mine. That one's end says
 * nothing then: the rank's own may be waiting to be accepted. */
ssize_t net_recv(struct net *n, int rank, enum net_channel ch, const struct iovec *io,
                 int nio, struct ddp_err *err)
{
    struct streams *s = &n->streams[rank];
    bool known = s->in[ch] >= 0;
    int fd = net_ear(s, ch);
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
        return net_gone(n, rank, k == 0 ? "connection closed" : strerror(errno), err);
    }
    n->expects = n->expects || !known;
    note(n, rank, ch, false);
    return 0;
}

uint64_t net_moves(const struct net *n)
{
    return n->moves;
}

char *net_room(struct net *n)
{
    if (!n->turn)
        n->turn = xrealloc(NULL, NET_TURN, 1);
    return n->turn;
}

/* ---- sleeping and looking ---- */

void net_begin(struct net *n)
{
    n->ninterests = 0;
    n->expects = false;
}

bool net_expects(const struct net *n)
{
    return n->expects;
}

bool net_has_stream(const struct net *n, int rank)
{
    return net_ear(&n->streams[rank], NET_MESSAGE) >= 0;
}

bool net_interested(const struct net *n)
{
    return n->ninterests > 0;
}

static void add_polled(struct net *n, size_t *np, int fd, short events)
{
    if (fd < 0)
        return;
    if (*np == n->polled_room) {
        n->polled_room = n->polled_room ? 2 * n->polled_room : 8;
        n->polled = xrealloc(n->polled, n->polled_room, sizeof *n->polled);
    }
    n->polled[(*np)++] = (struct pollfd){.fd = fd, .events = events};
}

void net_sleep(struct net *n, int ms)
{
    size_t np = 0;
    add_polled(n, &np, n->listener, POLLIN);
    for (const struct newcomer *c = n->newcomers; c; c = c->next)
        add_polled(n, &np, c->fd, POLLIN);
    for (const struct connecting *c = n->connecting; c; c = c->next) {
        add_polled(n, &np, c->fd, c->greeted ? 0 : POLLOUT);
        ms = c->greeted ? 1 : ms; /* an acknowledgement wakes nobody */
    }
    for (size_t i = 0; i < n->ninterests; i++) {
        const struct interest *w = &n->interests[i];
        const struct streams *s = &n->streams[w->rank];
        add_polled(n, &np, w->send ? s->out[w->ch] : net_ear(s, w->ch),
                   w->send ? POLLOUT : POLLIN);
    }
    poll(n->polled, np, ms);
}

int net_awaited(const struct net *n, int *ranks, int max)
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

struct net *net_create(const struct layout *layout, struct meet_doors *doors,
                       const uint64_t *entered)
{
    struct net *n = xcalloc(1, sizeof *n);
    n->layout = layout;
    n->entered = entered;
    n->listener = doors->tcp_fd;
    doors->tcp_fd = -1;
    memcpy(n->token, doors->token, sizeof n->token);
    n->streams = xcalloc((size_t)layout->size, sizeof *n->streams);
    for (int r = 0; r < layout->size; r++)
        n->streams[r] = (struct streams){{-1, -1}, {-1, -1}};
    return n;
}

void net_hang_up(struct net *n)
{
    for (int r = 0; r < n->layout->size; r++) {
        for (int ch = 0; ch < NET_NCHANNELS; ch++) {
            int in = n->streams[r].in[ch], out = n->streams[r].out[ch];
            if (out >= 0)
                close(out);
            if (in >= 0 && in != out)
                close(in);
        }
        n->streams[r] = (struct streams){{-1, -1}, {-1, -1}};
    }
    net_forget_all_connecting(n);
    net_begin(n);
}

void net_destroy(struct net *n)
{
    if (!n)
        return;
    net_hang_up(n);
    while (n->newcomers) {
        struct newcomer *c = n->newcomers;
        n->newcomers = c->next;
        close(c->fd);
        free(c);
    }
    close(n->listener);
    net_forget_calls(n);
    net_forget_watched(n);
    free(n->interests);
    free(n->polled);
    free(n->turn);
    free(n->streams);
    free(n);
}
