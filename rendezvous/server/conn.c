/* rendezvous/server/conn.c - one client: a socket, a session, and buffered leftovers
 *
 * The fast path of nearly all requests: one recv() into the buffer that all connections
 * share, requests executed in place, all replies in one send(). A connection stores only
 * incomplete requests, and replies that the socket did not take. bufferevents would cost
 * two copies and a timeout per request, so they are not used.
 *
 * While more than OUTPUT_MARK bytes wait to be sent the session executes no request and
 * nothing is read: a slow reader delays only itself.
 */
#include "rendezvous/server/server_impl.h"

#include "common/mem.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>
#include <utlist.h>

enum {
    PIECES = 64,             /* per sendmsg() */
    SENT_MAX = 4 << 20,      /* bytes per loop iteration */
    HELD_SMALL = 16 << 10,   /* leftovers up to this are put before the next recv() */
    HELD_KEPT = 64,          /* an empty buffer up to this size is kept */
    HOLD_MS = 1000,          /* Horovod checks its time limit only between two requests */
    ELASTIC_HOLD_MS = 60000, /* ... which may be shorter than a rank takes to start */
};

static void on_event(evutil_socket_t fd, short what, void *arg);

/* -- events -------------------------------------------------------------------------- */

static bool conn_paused(const struct conn *c)
{
    return c->backlog && out_left(c->backlog) >= OUTPUT_MARK;
}

static void conn_listen_to(struct conn *c)
{
    bool stalled = c->session.stalled;
    short wanted = (short)((c->backlog || stalled ? EV_WRITE : 0) |
                           (conn_paused(c) || stalled || c->leaving ? 0 : EV_READ) |
                           (session_holds(&c->session) ? EV_TIMEOUT : 0));
    int hold_ms = c->server->host.asked ? ELASTIC_HOLD_MS : HOLD_MS;
    struct timeval hold = {hold_ms / 1000, hold_ms % 1000 * 1000};
    if (c->closed || wanted == c->wanted)
        return;
    if (c->wanted)
        event_del(&c->event);
    event_assign(&c->event, loop_base(c->server->loop), c->fd,
                 (short)(wanted | EV_PERSIST), on_event, c);
    if (event_add(&c->event, wanted & EV_TIMEOUT ? &hold : NULL) < 0)
        conn_close(c, "the event loop does not take it");
    else
        c->wanted = wanted;
}

/* -- sending ------------------------------------------------------------------------- */

static ssize_t send_some(int fd, const struct out *out)
{
    if (out->nrefs == 0)
        return send(fd, out->data + out->done, out->size - out->done, MSG_NOSIGNAL);
    struct iovec pieces[PIECES];
    struct msghdr m = {.msg_iov = pieces};
    m.msg_iovlen = (size_t)out_pieces(out, pieces, PIECES);
    return sendmsg(fd, &m, MSG_NOSIGNAL);
}

/* Send until all is sent, the socket is full, or other connections should be served; -1:
 * the connection is broken. */
static int conn_send(struct conn *c, struct out *out)
{
    size_t sent = 0;
    while (out_left(out) > 0 && sent < SENT_MAX) {
        ssize_t n = send_some(c->fd, out);
        if (n < 0) {
            if (errno == EINTR)
                continue;
            return errno == EAGAIN || errno == ENOBUFS ? 0 : -1;
        }
        out_sent(out, (size_t)n);
        sent += (size_t)n;
    }
    return 0;
}

/* Output that the socket does not take moves to the connection. */
static int conn_flush(struct conn *c, struct out *out)
{
    if (conn_send(c, out) < 0)
        return -1;
    if (out_left(out) > 0 && out != c->backlog) {
        c->backlog = out;
        c->server->output = xcalloc(1, sizeof *out);
    } else if (out_left(out) == 0 && out == c->backlog) {
        out_finish(out);
        free(out);
        c->backlog = NULL;
    }
    return 0;
}

/* -- incomplete input ---------------------------------------------------------------- */

static void held_clear(struct conn *c)
{
    c->nheld = 0;
    if (c->held_room > HELD_KEPT) {
        free(c->held);
        c->server->held -= c->held_room;
        c->held = NULL;
        c->held_room = 0;
    }
}

static int held_grow(struct conn *c, size_t room)
{
    struct server *s = c->server;
    if (room <= c->held_room)
        return 0;
    if (s->held + (room - c->held_room) > s->max_held)
        return -1;
    uint8_t *held = realloc(c->held, room);
    if (!held)
        return -1;
    s->held += room - c->held_room;
    c->held = held;
    c->held_room = room;
    return 0;
}

/* `in` is the server's buffer, or `held` itself. */
static int held_keep(struct conn *c, const uint8_t *in, size_t n)
{
    if (n == 0) {
        held_clear(c);
        return 0;
    }
    if (in < c->held || in >= c->held + c->held_room) {
        if (held_grow(c, n < HELD_KEPT ? HELD_KEPT : n) < 0)
            return -1;
        memcpy(c->held, in, n);
    } else if (in != c->held) {
        memmove(c->held, in, n);
    }
    c->nheld = n;
    return 0;
}

/* -- feeding ------------------------------------------------------------------------- */

static void conn_feed(struct conn *c, const uint8_t *in, size_t n)
{
    struct server *s = c->server;
    struct out *out = c->backlog ? c->backlog : s->output;
    struct ddp_err err;
    s->feeding = c;
    ssize_t used = session_feed(&c->session, in, n, out, &err);
    s->feeding = NULL;
    int sent = conn_flush(c, out);
    if (used < 0) {
        conn_close(c, err.text);
    } else if (sent < 0) {
        conn_close(c, NULL); /* the client has disconnected */
    } else if (held_keep(c, in + used, n - (size_t)used) < 0) {
        conn_close(c, "no memory for its request");
    } else if (c->leaving && !c->backlog && !c->session.stalled) {
        conn_close(c, NULL);
    } else if (session_waits(&c->session) && c->nheld > s->host.limits.max_request) {
        conn_close(c, "it sends on and on while it waits");
    } else {
        conn_listen_to(c);
    }
    if (out == s->output && out_left(out) > 0)
        out_finish(out); /* unsent output of a closed connection */
}

static void conn_feed_held(struct conn *c)
{
    conn_feed(c, c->held ? c->held : c->server->input, c->nheld);
}

void conn_news(struct server *s)
{
    if (s->notifying || s->feeding)
        return;
    s->notifying = true;
    while (s->news) {
        struct conn *c = s->news;
        s->news = c->news_next;
        c->has_news = false;
        if (c->closed)
            continue;
        if (c->backlog && out_left(c->backlog) > OUTPUT_MAX)
            conn_close(c, "it does not read its notifications");
        else
            conn_feed_held(c);
    }
    s->notifying = false;
}

static struct conn *conn_of(struct session *session)
{
    return (struct conn *)(void *)((char *)session - offsetof(struct conn, session));
}

static void on_session_news(struct session *session)
{
    struct conn *c = conn_of(session);
    struct server *s = c->server;
    if (c->has_news)
        return;
    c->has_news = true;
    c->news_next = NULL;
    *(s->news ? &s->news_tail->news_next : &s->news) = c;
    s->news_tail = c;
}

static struct out *session_out(struct session *session)
{
    struct conn *c = conn_of(session);
    if (!c->backlog && c->server->feeding == c)
        return c->server->output;
    if (!c->backlog)
        c->backlog = xcalloc(1, sizeof *c->backlog);
    return c->backlog;
}

void conn_host_init(struct session_host *h)
{
    h->output_mark = OUTPUT_MARK;
    h->news = on_session_news;
    h->out = session_out;
}

/* -- reading ------------------------------------------------------------------------- */

/* The buffer to read into, with the held input in front of it at `*in`. */
static uint8_t *read_place(struct conn *c, uint8_t **in, size_t *room)
{
    if (c->nheld <= HELD_SMALL) {
        *in = c->server->input;
        if (c->nheld > 0)
            memcpy(*in, c->held, c->nheld);
        *room = INPUT_ROOM - c->nheld;
    } else {
        size_t wanted = c->nheld * 2 < INPUT_ROOM ? INPUT_ROOM : c->nheld * 2;
        if (c->held_room - c->nheld < HELD_SMALL && held_grow(c, wanted) < 0)
            return NULL;
        *in = c->held;
        *room = c->held_room - c->nheld;
    }
    return *in + c->nheld;
}

/* Send the backlog first; that may allow held requests to proceed. */
static void conn_write(struct conn *c)
{
    if (c->backlog && conn_flush(c, c->backlog) < 0)
        conn_close(c, NULL);
    else
        conn_feed_held(c);
}

static void conn_read(struct conn *c)
{
    uint8_t *in;
    size_t room;
    uint8_t *place = read_place(c, &in, &room);
    if (!place) {
        conn_close(c, "no memory for its request");
        return;
    }
    ssize_t n = recv(c->fd, place, room, 0);
    if (n > 0) {
        conn_feed(c, in, c->nheld + (size_t)n);
    } else if (n == 0 && c->backlog) {
        c->leaving = true;
        conn_listen_to(c);
    } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
        conn_close(c, NULL);
    }
}

static void on_event(evutil_socket_t fd, short what, void *arg)
{
    struct conn *c = arg;
    struct server *s = c->server;
    if (what & EV_WRITE)
        conn_write(c);
    if ((what & EV_READ) && !c->closed && (c->wanted & EV_READ))
        conn_read(c);
    if ((what & EV_TIMEOUT) && !c->closed) {
        session_expire(&c->session);
        conn_feed_held(c);
    }
    conn_news(s);
}

/* -- start and end ------------------------------------------------------------------- */

void conn_start(struct server *s, int fd, const union peer *peer, unsigned scope)
{
    struct conn *c = xcalloc(1, sizeof *c);
    c->server = s;
    c->fd = fd;
    c->peer = *peer;
    session_init(&c->session, &s->host, store_open(s->store, scope));
    DL_PREPEND(s->conns, c);
    s->nconns++;
    conn_listen_to(c);
}

void conn_close(struct conn *c, const char *why)
{
    struct server *s = c->server;
    if (c->closed)
        return;
    c->closed = true;
    if (c->wanted)
        event_del(&c->event);
    close(c->fd);
    session_finish(&c->session);
    space_close(c->session.space);
    if (c->backlog) {
        out_finish(c->backlog);
        free(c->backlog);
    }
    free(c->held);
    s->held -= c->held_room;
    server_conn_gone(s, c);
    if (why)
        server_closed(s, &c->peer, why);
}
