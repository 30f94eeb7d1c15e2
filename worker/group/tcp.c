/* worker/group/tcp.c - see tcp.h
 *
 * A rank that sends before it has received anything opens a connection. The receiver's
 * kernel completes it while the receiver computes; the receiver accepts it in its next
 * progress call and answers on the same connection, so that acknowledgements are
 * piggybacked, which saves a quarter of a short message's latency. When two ranks open
 * connections at the same time, each sends on its own and reads from both until it
 * knows which one the other uses.
 */
#include "worker/group/tcp.h"

#include "common/err.h"
#include "common/mem.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum {
    FIRST_MS = 1, /* to wait for a new connection before the call returns */
    OPENED = 64   /* streams at one look */
};

static void note(struct tcp *n, int rank, enum tcp_channel ch, bool send)
{
    n->interests = xroom(n->interests, n->ninterests, &n->room, sizeof *n->interests);
    n->interests[n->ninterests++] = (struct interest){rank, ch, send};
}

/* ---- sending and receiving ---- */

static const struct stream none = {-1, -1};

struct peer *tcp_peer(struct tcp *n, int rank)
{
    struct peer *p = n->peers[rank];
    if (p)
        return p;
    p = xcalloc(1, sizeof *p);
    for (int ch = 0; ch < TCP_ALL_CHANNELS; ch++)
        p->streams[ch] = none;
    atomic_thread_fence(memory_order_release); /* for tcp_close_copies() */
    return n->peers[rank] = p;
}

/* Make tcp_stream()->out usable: our own stream, the one the peer has opened, or a
 * new one. A connection on which the hello has been sent is not given up for the peer's:
 * the peer may have accepted it, and would take its end for ours. 1, 0 when it is not
 * connected yet, or -1. */
static int stream_to(struct tcp *n, int rank, enum tcp_channel ch, struct ddp_err *err)
{
    struct stream *s = tcp_stream(n, rank, ch);
    if (s->out >= 0)
        return 1;
    const struct connecting *c = tcp_connecting(n, rank, ch);
    if (s->in < 0 || (c && c->greeted))
        return tcp_connect(n, rank, ch, FIRST_MS, err);
    tcp_forget_connecting(n, rank, ch);
    s->out = s->in;
    tcp_prepare_to_send(s->out);
    return 1;
}

unsigned tcp_widen(struct tcp *n, int rank, enum tcp_channel ch, unsigned wanted)
{
    struct ddp_err unwanted;
    struct rlimit files = {0};
    unsigned k = 1;
    if (wanted > 1)
        getrlimit(RLIMIT_NOFILE, &files);
    for (; k < wanted && k < TCP_STREAMS; k++) {
        if (tcp_stream(n, rank, ch)->out >= (int64_t)(files.rlim_cur / 4))
            break;
        ch += TCP_NCHANNELS;
        if (stream_to(n, rank, ch, &unwanted) <= 0)
            break;
    }
    return k;
}

enum tcp_channel tcp_stream_of(enum tcp_channel ch, unsigned nstreams, uint64_t at,
                               size_t *bytes)
{
    if (nstreams <= 1)
        return ch;
    *bytes =
        *bytes < TCP_STRIPE - at % TCP_STRIPE ? *bytes : TCP_STRIPE - at % TCP_STRIPE;
    return ch + at / TCP_STRIPE % nstreams % TCP_STREAMS * TCP_NCHANNELS;
}

ssize_t tcp_send(struct tcp *n, int rank, enum tcp_channel ch, const struct iovec *io,
                 int nio, struct ddp_err *err)
{
    int rc = stream_to(n, rank, ch, err);
    if (rc == 0)
        note(n, rank, ch, true);
    if (rc <= 0)
        return rc;
    int fd = tcp_stream(n, rank, ch)->out;
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
    struct stream *s = tcp_stream(n, rank, ch);
    bool known = s->in >= 0;
    int fd = tcp_receiving_fd(s);
    struct msghdr msg = {.msg_iov = (struct iovec *)(uintptr_t)io,
                         .msg_iovlen = (size_t)nio};
    while (fd >= 0) {
        ssize_t k = nio == 1 ? recv(fd, io->iov_base, io->iov_len, MSG_DONTWAIT)
                             : recvmsg(fd, &msg, MSG_DONTWAIT);
        n->moves += k > 0;
        if (k > 0) {
            s->in = fd;
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

/* ---- sleeping ---- */

bool tcp_begin(struct tcp *n, int *culprit, struct ddp_err *err)
{
    bool expects = n->expects;
    n->ninterests = 0;
    n->expects = false;
    return expects && tcp_failure_reported(n, culprit, err);
}

void tcp_add_polled(struct tcp *n, size_t *np, int fd, short events)
{
    if (fd < 0)
        return;
    n->polled = xroom(n->polled, *np, &n->polled_room, sizeof *n->polled);
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
        const struct stream *s = tcp_stream(n, w->rank, w->ch);
        tcp_add_polled(n, &np, w->send ? s->out : tcp_receiving_fd(s),
                       w->send ? POLLOUT : POLLIN);
    }
    poll(n->polled, np, ms);
}

/* ---- are the ranks of other hosts alive? ----
 *
 * The kernel closes the streams of a process that has ended for whatever reason; a host
 * that is down is found by keepalive, or does not acknowledge what was sent. Either needs
 * a stream, so one is opened where there is none. */

/* On an open stream the end of file arrives behind the last data, so only a missing one
 * needs a check. */
static bool is_missing(struct tcp *n, const struct interest *w)
{
    return w->send || tcp_stream(n, w->rank, w->ch)->in < 0;
}

static bool is_silent(struct tcp *n, const struct interest *w)
{
    return tcp_is_silent(tcp_stream(n, w->rank, w->ch)->out);
}

bool tcp_still_needs(struct tcp *n, int rank)
{
    for (size_t i = 0; i < n->ninterests; i++) {
        const struct interest *w = &n->interests[i];
        if (w->rank == rank && (is_missing(n, w) || is_silent(n, w)))
            return true;
    }
    return tcp_peer(n, rank)->watched;
}

/* Half of the descriptors are left to the user. */
static bool may_open(const struct tcp *n)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_NOFILE, &limit) == 0 && n->nlooking < limit.rlim_cur / 2;
}

/* Has it gone, as its streams show? One is opened if there is none, which *opened counts.
 * 0, or -1. */
static int look_at(struct tcp *n, int rank, int *opened, struct ddp_err *err)
{
    const struct peer *p = tcp_peer(n, rank);
    struct pollfd fds[2 * TCP_NCHANNELS];
    bool begun = tcp_connecting(n, rank, TCP_COLL) != NULL;
    if (!tcp_any_stream(p) && (begun || (*opened < OPENED && may_open(n)))) {
        *opened += !begun;
        n->nlooking += !begun;
        TRY(tcp_connect(n, rank, TCP_COLL, 0, err));
    }
    for (int ch = 0; ch < TCP_NCHANNELS; ch++) { /* poll() passes -1 over */
        fds[2 * ch] = (struct pollfd){.fd = p->streams[ch].in, .events = POLLRDHUP};
        fds[2 * ch + 1] = (struct pollfd){.fd = p->streams[ch].out, .events = POLLRDHUP};
    }
    return poll(fds, ARRAY_LEN(fds), 0) > 0 ? tcp_gone(n, rank, "connection closed", err)
                                            : 0;
}

/* One that has left has left nothing undone, or is to blame. */
static int check_left(const struct tcp *n, int rank, struct ddp_err *err)
{
    return n->peers[rank]->left > n->watched_in
               ? 0
               : layout_blame(n->layout, rank, "has left the group", err);
}

int tcp_look(struct tcp *n, struct ddp_err *err)
{
    int opened = 0;
    for (size_t i = 0; i < n->ninterests; i++) {
        const struct interest *w = &n->interests[i];
        bool silent = is_silent(n, w);
        if (silent)
            tcp_gone(n, w->rank, "its host does not answer", err);
        if (silent || (is_missing(n, w) && look_at(n, w->rank, &opened, err) < 0))
            return w->rank;
    }
    for (int rank = 0; rank < n->layout->size; rank++) {
        const struct peer *p = n->peers[rank];
        if (p && p->watched &&
            (p->left > 0 ? check_left(n, rank, err) : look_at(n, rank, &opened, err)) < 0)
            return rank;
    }
    return -1;
}

void tcp_watch_none(struct tcp *n, uint64_t number)
{
    for (int rank = 0; rank < n->layout->size; rank++) {
        if (n->peers[rank])
            n->peers[rank]->watched = false;
    }
    n->watched_in = number;
}

void tcp_watch(struct tcp *n, int rank)
{
    struct peer *of = tcp_peer(n, rank);
    of->watched = of->left <= n->watched_in;
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
    n->peers = xcalloc((size_t)layout->size, sizeof *n->peers);
    n->turn = xrealloc(NULL, TCP_TURN, 1);
    return n;
}

static void close_stream(struct stream *s)
{
    if (s->in != s->out)
        close_fd(&s->in);
    close_fd(&s->out);
    *s = none;
}

static void close_streams(struct tcp *n)
{
    for (int r = 0; r < n->layout->size; r++) {
        for (int ch = 0; n->peers[r] && ch < TCP_ALL_CHANNELS; ch++)
            close_stream(&n->peers[r]->streams[ch]);
    }
}

void tcp_close_copies(struct tcp *n)
{
    close_streams(n);
    for (struct connecting *c = n->connecting; c; c = c->next)
        close_fd(&c->fd);
    for (struct accepted *c = n->accepted; c; c = c->next)
        close_fd(&c->fd);
    close_fd(&n->listener);
}

void tcp_close_streams(struct tcp *n)
{
    close_streams(n);
    while (n->connecting)
        tcp_forget_connecting(n, n->connecting->rank, n->connecting->ch);
    n->ninterests = 0;
    n->expects = false;
}

void tcp_destroy(struct tcp *n)
{
    if (!n)
        return;
    tcp_close_streams(n);
    close_fd(&n->listener);
    tcp_forget_reports(n);
    for (int r = 0; r < n->layout->size; r++) {
        if (n->peers[r])
            free(n->peers[r]->calls);
        free(n->peers[r]);
    }
    free(n->interests);
    free(n->polled);
    free(n->turn);
    free(n->peers);
    free(n);
}
