/* worker/group/p2p.c - point-to-point messages: see group.h
 *
 * A message to a rank of this host, if nothing is queued before it and the ring has
 * room, is written inside p2p_post(). Everything else is done by p2p_progress(), in
 * order.
 */

#include "worker/group/mailbox.h"

#include "common/err.h"
#include "common/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADER_MAGIC = 0x6d706464, HEADER_BYE = 0x62706464 };

enum { GATHER = 16 }; /* messages that go in one call */

/* ---- sending ---- */

static void sent(struct ddp_group *g, struct mailbox *b)
{
    struct ddp_request *r = b->out.first;
    queue_remove(&b->out, r);
    b->out_at = 0;
    message_end(g, r);
}

static size_t next_piece(const struct mailbox *b, const struct ddp_request *r)
{
    size_t left = r->bytes - b->out_at;
    return left < RING_PIECE ? left : RING_PIECE;
}

/* Through memory: piece by piece. */
static void send_near(struct ddp_group *g, struct mailbox *b)
{
    struct ddp_request *r;
    while ((r = b->out.first)) {
        size_t n = next_piece(b, r);
        if (!ring_has_room(&b->ring_out, n))
            return;
        ring_write(&b->ring_out, (uint32_t)r->tag, r->what, r->bytes, r->data + b->out_at,
                   n);
        g->shm->moves++;
        shm_wake(g->shm, b->local);
        b->out_at += n;
        if (b->out_at == r->bytes)
            sent(g, b);
    }
}

/* May a message be divided over several streams? */
static bool divisible(const struct ddp_group *g, const struct ddp_request *r)
{
    return r->bytes > TCP_STRIPE && g->hier->streams.n > 1;
}

/* The headers and unsent data of the first queued messages; returns how many pieces,
 * which go by `*ch`. A message that is divided goes alone, stripe by stripe. */
static int gather(const struct ddp_group *g, const struct mailbox *b,
                  struct p2p_header *headers, struct iovec *io, enum tcp_channel *ch)
{
    int n = 0;
    size_t skip = b->out_at;
    unsigned streams = b->out_streams;
    const struct ddp_request *r = b->out.first;
    *ch = TCP_MESSAGE;
    for (int i = 0; r && i < GATHER; i++, r = r->next, skip = 0) {
        if (i > 0 && (streams > 1 || divisible(g, r)))
            break;
        headers[i] = (struct p2p_header){HEADER_MAGIC, (uint32_t)r->tag, r->bytes,
                                         r->what, streams};
        size_t head = sizeof headers[i], body = skip > head ? skip - head : 0;
        size_t left = r->bytes - body;
        *ch = tcp_stream_of(TCP_MESSAGE, streams, body, &left);
        if (skip < head)
            io[n++] = (struct iovec){(char *)&headers[i] + skip, head - skip};
        if (left > 0)
            io[n++] = (struct iovec){r->data + body, left};
    }
    return n;
}

/* Through a connection: as much as it takes, many at once. */
static int send_far(struct ddp_group *g, struct mailbox *b, struct ddp_err *err)
{
    while (b->out.first) {
        struct p2p_header headers[GATHER];
        struct iovec io[2 * GATHER];
        enum tcp_channel ch;
        if (b->out_at == 0)
            b->out_streams =
                divisible(g, b->out.first)
                    ? tcp_widen(g->tcp, b->rank, TCP_MESSAGE, g->hier->streams.n)
                    : 1;
        int nio = gather(g, b, headers, io, &ch);
        ssize_t n = tcp_send(g->tcp, b->rank, ch, io, nio, err);
        if (n <= 0)
            return (int)n;
        size_t left = (size_t)n, whole;
        while (left > 0 &&
               b->out_at + left >= (whole = sizeof *headers + b->out.first->bytes)) {
            left -= whole - b->out_at;
            sent(g, b);
        }
        b->out_at += left;
    }
    return 0;
}

static int send_some(struct ddp_group *g, struct mailbox *b, struct ddp_err *err)
{
    if (b->local < 0)
        return send_far(g, b, err);
    send_near(g, b);
    return 0;
}

/* ---- receiving ---- */

static int wrong_size(const struct mailbox *b, const struct ddp_request *r, size_t bytes,
                      struct ddp_err *err)
{
    if (r->what == 1 + COLL_BOOTSTRAP)
        return group_lists_differ(r->group, b->rank, err);
    if (r->what)
        return err_set(err, "rank %d gives %zu bytes to the %s where %zu are expected",
                       b->rank, bytes, coll_describe(r->what - 1, 0).text, r->bytes);
    return err_set(err, "rank %d has sent %zu bytes with tag %d where %zu are asked for",
                   b->rank, bytes, r->tag, r->bytes);
}

/* Do the message and the receive agree in size and kind? */
static int fits(const struct mailbox *b, const struct ddp_request *r, size_t bytes,
                uint32_t what, struct ddp_err *err)
{
    if (what == r->what)
        return bytes == r->bytes ? 0 : wrong_size(b, r, bytes, err);
    struct call here = {.number = (uint64_t)r->tag, .what = r->what - 1}, there = here;
    there.what = what - 1;
    return coll_disagree(r->group->layout.rank, &here, b->rank, &there, err);
}

/* The header is complete: find the receive, or buffer the message as unexpected. */
static int address(struct ddp_group *g, struct mailbox *b, struct ddp_err *err)
{
    const struct p2p_header *l = &b->header;
    if (l->tag > INT32_MAX)
        return err_set(err, "rank %d sends something that is not a message", b->rank);
    b->got = 0;
    b->into = mailbox_take_posted(g, b, (int)l->tag, l->what);
    if (b->into)
        return fits(b, b->into, l->bytes, l->what, err);
    b->into = unexpected_add(g, b, (int)l->tag, l->what, l->bytes);
    if (!b->into)
        return err_set(err,
                       "no memory for a message of %llu bytes with tag %u from rank %d, "
                       "for which no receive is posted",
                       (unsigned long long)l->bytes, l->tag, b->rank);
    return 0;
}

static void arrived(struct ddp_group *g, struct mailbox *b)
{
    b->header_got = 0;
    if (b->into->kind == REQUEST_RECV)
        message_end(g, b->into);
    b->into = NULL;
}

/* Data are read only while a receive needs them; else they stay in the stream, which
 * blocks the sender. */
static bool wanted(const struct ddp_group *g, const struct mailbox *b)
{
    return mailbox_needed(b) || (g->any.first && !b->left);
}

/* From memory, one piece: 1, 0 when there is none, or -1. */
static int recv_near(struct ddp_group *g, struct mailbox *b, struct ddp_err *err)
{
    const struct ring_slot *slot = ring_peek(&b->ring_in);
    if (!slot)
        return 0;
    if (!b->into) {
        b->header = (struct p2p_header){
            .tag = slot->tag, .bytes = slot->bytes, .what = slot->what};
        TRY(address(g, b, err));
    }
    size_t n = slot->size;
    bool room = ring_take(&b->ring_in, slot, b->into->data + b->got);
    g->shm->moves++;
    b->got += n;
    if (b->got == b->header.bytes)
        arrived(g, b);
    if (room)
        shm_wake(g->shm, b->local);
    return 1;
}

/* Read what has arrived into a buffer that mailboxes take in turn. */
static ssize_t read_ahead(struct ddp_group *g, struct mailbox *b, struct ddp_err *err)
{
    struct ahead *a = g->spare ? g->spare : xcalloc(1, sizeof *a);
    struct iovec io = {a->data, AHEAD};
    ssize_t n = tcp_recv(g->tcp, b->rank, TCP_MESSAGE, &io, 1, err);
    a->at = 0;
    a->end = n > 0 ? (size_t)n : 0;
    b->ahead = n > 0 ? a : NULL;
    g->spare = n > 0 ? NULL : a;
    return n;
}

static void all_read(struct ddp_group *g, struct mailbox *b)
{
    if (g->spare)
        free(b->ahead);
    else
        g->spare = b->ahead;
    b->ahead = NULL;
}

/* Read from a connection. Long data are read in place; for short data everything that
 * has arrived is read at once, so that a message takes at most one call. Further streams
 * have stripes only. */
static ssize_t stream_recv(struct ddp_group *g, struct mailbox *b, enum tcp_channel ch,
                           void *data, size_t size, struct ddp_err *err)
{
    if (ch != TCP_MESSAGE || (!b->ahead && size >= AHEAD)) {
        struct iovec io = {data, size};
        return tcp_recv(g->tcp, b->rank, ch, &io, 1, err);
    }
    ssize_t rc = b->ahead ? 1 : read_ahead(g, b, err);
    if (rc <= 0)
        return rc;
    struct ahead *a = b->ahead;
    size_t n = a->end - a->at < size ? a->end - a->at : size;
    memcpy(data, a->data + a->at, n);
    a->at += n;
    if (a->at == a->end)
        all_read(g, b);
    return (ssize_t)n;
}

static int recv_header(struct ddp_group *g, struct mailbox *b, int *culprit,
                       struct ddp_err *err)
{
    ssize_t n = stream_recv(g, b, TCP_MESSAGE, (char *)&b->header + b->header_got,
                            sizeof b->header - b->header_got, err);
    if (n <= 0)
        return (int)n;
    b->header_got += (size_t)n;
    if (b->header_got < sizeof b->header)
        return 1;
    b->left = b->header.magic == HEADER_BYE;
    if (b->left)
        return 1;
    if (b->header.magic != HEADER_MAGIC)
        err_set(err, "rank %d sends something that is not a message", b->rank);
    else if (address(g, b, err) == 0)
        return 1;
    *culprit = -1; /* the rank is alive */
    return -1;
}

/* Read a header or data from a connection: 1, 0 when nothing has arrived, or -1. */
static int recv_far(struct ddp_group *g, struct mailbox *b, int *culprit,
                    struct ddp_err *err)
{
    if (b->header_got < sizeof b->header) {
        int rc = recv_header(g, b, culprit, err);
        if (rc <= 0 || !b->into)
            return rc;
    }
    if (b->got < b->header.bytes) {
        size_t left = b->header.bytes - b->got;
        enum tcp_channel ch =
            tcp_stream_of(TCP_MESSAGE, b->header.streams, b->got, &left);
        ssize_t n = stream_recv(g, b, ch, b->into->data + b->got, left, err);
        if (n <= 0)
            return (int)n;
        b->got += (size_t)n;
    }
    if (b->got == b->header.bytes)
        arrived(g, b);
    return 1;
}

static int recv_some(struct ddp_group *g, struct mailbox *b, int *culprit,
                     struct ddp_err *err)
{
    while (wanted(g, b)) {
        if (b->left)
            return layout_blame(&g->layout, b->rank, "has left the group", err);
        int rc = b->local < 0 ? recv_far(g, b, culprit, err) : recv_near(g, b, err);
        if (rc < 0 && b->local >= 0)
            *culprit = -1;
        if (rc <= 0)
            return rc;
    }
    return 0;
}

/* ---- the verbs ---- */

static int all_have_left(const struct ddp_group *g, int *culprit, struct ddp_err *err)
{
    *culprit = -1;
    for (const struct mailbox *b = g->mailboxes; b; b = b->next) {
        if (!b->left && b->rank != g->layout.rank)
            return 0;
    }
    return err_set(err,
                   "waiting for a message from any rank, but all other ranks have left");
}

int p2p_progress(struct ddp_group *g, int *culprit, struct ddp_err *err)
{
    if (g->npending == 0)
        return 0;
    for (struct mailbox *b = g->mailboxes; b; b = b->next) {
        *culprit = b->rank;
        if (b->rank == g->layout.rank)
            continue; /* a message to oneself was copied by send_to_self() */
        TRY(send_some(g, b, err));
        TRY(recv_some(g, b, culprit, err));
    }
    bool others = g->layout.size > 1; /* one rank alone may yet send to itself */
    return g->any.first && others ? all_have_left(g, culprit, err) : 0;
}

/* To this rank itself: an unexpected message, complete at once. */
static void send_to_self(struct ddp_group *g, struct mailbox *b, struct ddp_request *r)
{
    struct ddp_request *m = unexpected_add(g, b, r->tag, r->what, r->bytes);
    if (!m)
        abort(); /* like xcalloc(): the user has this size twice already */
    if (r->bytes > 0)
        memcpy(m->data, r->data, r->bytes);
    message_end(g, r);
    struct ddp_request *asked = mailbox_take_posted(g, b, r->tag, r->what);
    struct ddp_err err;
    if (asked && fits(b, asked, m->bytes, m->what, &err) < 0)
        group_break(g, -1, &err);
    else if (asked)
        unexpected_deliver(b, m, asked);
}

static void post_send(struct ddp_group *g, struct ddp_request *r)
{
    struct mailbox *b = mailbox_of(g, r->peer);
    if (r->peer == g->layout.rank) {
        send_to_self(g, b, r);
        return;
    }
    queue_append(&b->out, r);
    struct ddp_err err;
    bool first = b->out.first == r;
    if (first && send_some(g, b, &err) < 0)
        group_rank_lost(g, b->rank, &err);
}

static void post_recv(struct ddp_group *g, struct ddp_request *r)
{
    struct ddp_err err;
    struct ddp_request *m = unexpected_find(g, r);
    struct mailbox *b = mailbox_of(g, r->peer);
    r->serial = ++g->serial;
    if (!m) {
        queue_append(r->any ? &g->any : &b->posted, r);
        if (b->posted.first == r && b->local >= 0 && !b->left &&
            recv_near(g, b, &err) < 0)
            group_break(g, -1, &err);
    } else if (fits(b, r, m->bytes, m->what, &err) < 0) {
        group_break(g, -1, &err);
    } else {
        unexpected_deliver(b, m, r);
    }
}

void p2p_post(struct ddp_group *g, struct ddp_request *r)
{
    g->npending++;
    (r->kind == REQUEST_SEND ? post_send : post_recv)(g, r);
}

bool p2p_cancel(struct ddp_group *g, struct ddp_request *r)
{
    struct mailbox *b = mailbox_of(g, r->peer);
    bool under_way = b->out.first == r && b->out_at > 0;
    struct request_queue *row = r->kind == REQUEST_SEND ? &b->out
                                : r->any                ? &g->any
                                                        : &b->posted;
    bool off =
        !under_way && queue_remove(row, r); /* a message being received is in no queue */
    g->npending -= off;
    return off;
}

/* Sent on each stream with room, so that no rank waits for this one. */
void p2p_announce_leave(struct ddp_group *g)
{
    struct p2p_header bye = {.magic = HEADER_BYE};
    struct iovec io = {&bye, sizeof bye};
    struct ddp_err unwanted;
    for (const struct mailbox *b = g->mailboxes; b && g->tcp && !g->broken; b = b->next) {
        if (b->local < 0 && b->out_at == 0 &&
            tcp_receiving_fd(tcp_stream(g->tcp, b->rank, TCP_MESSAGE)) >= 0)
            tcp_send(g->tcp, b->rank, TCP_MESSAGE, &io, 1, &unwanted);
    }
}

/* ---- what is waited for ---- */

bool p2p_ready(const struct ddp_group *g)
{
    for (struct mailbox *b = g->npending ? g->mailboxes : NULL; b; b = b->next) {
        if (b->local < 0 || b->rank == g->layout.rank)
            continue;
        if (wanted(g, b) && ring_peek(&b->ring_in))
            return true;
        if (b->out.first && ring_has_room(&b->ring_out, next_piece(b, b->out.first)))
            return true;
    }
    return false;
}

enum awaited p2p_awaits(const struct ddp_group *g, int rank)
{
    const struct mailbox *b = g->mailbox ? g->mailbox[rank] : NULL;
    if (!b)
        return AWAITED_NOT;
    if (mailbox_needed(b) || b->out.first)
        return AWAITED;
    return wanted(g, b) ? AWAITED_PERHAPS : AWAITED_NOT;
}

bool p2p_awaits_host(const struct ddp_group *g)
{
    const struct mailbox *b = g->npending ? g->mailboxes : NULL;
    while (b && (b->local < 0 || b->rank == g->layout.rank || !p2p_awaits(g, b->rank)))
        b = b->next;
    return b != NULL;
}

struct phrase p2p_name(const struct ddp_group *g)
{
    struct phrase name = {"a send or receive"};
    const struct ddp_request *r = g->any.first;
    for (const struct mailbox *b = g->mailboxes; b && !r; b = b->next)
        r = b->out.first                               ? b->out.first
            : b->posted.first                          ? b->posted.first
            : b->into && b->into->kind == REQUEST_RECV ? b->into
                                                       : NULL;
    if (!r)
        return name;
    char peer[24] = "any rank";
    if (!r->any)
        snprintf(peer, sizeof peer, "rank %d", r->peer);
    bool sends = r->kind == REQUEST_SEND;
    if (r->what == 1 + COLL_BOOTSTRAP)
        snprintf(name.text, sizeof name.text, "rank %d's making of a group with %s",
                 g->layout.rank, peer);
    else
        snprintf(name.text, sizeof name.text,
                 "rank %d's %s of %zu bytes with tag %d %s %s", g->layout.rank,
                 sends ? "send" : "receive", r->bytes, r->tag, sends ? "to" : "from",
                 peer);
    return name;
}

void p2p_left(struct ddp_group *g, int rank)
{
    mailbox_of(g, rank)->left = true;
}
