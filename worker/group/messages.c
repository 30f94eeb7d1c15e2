/* worker/group/messages.c - see messages.h */
#include "worker/group/messages.h"

#include "common/err.h"
#include "common/mem.h"

#include <stdlib.h>
#include <string.h>

struct label { /* precedes a message in the stream */
    uint32_t magic, tag;
    uint64_t bytes;
};

enum { LABEL_MAGIC = 0x6d706464 };

/* A message that came, or is coming, unasked. */
struct parcel {
    struct parcel *next;
    int tag;
    size_t bytes;
    bool complete;
    struct ddp_request *taker; /* who has asked for it meanwhile */
    char data[];
};

struct mailbox {
    struct mailbox *next; /* all that exist */
    int rank;
    struct ddp_request *out;   /* to be sent, in order */
    size_t out_at;             /* bytes of the first that are sent, label included */
    struct ddp_request *asked; /* to be received, in the order asked */
    struct parcel *parcels;    /* owned, in the order they came */
    struct label label;        /* of the message coming in */
    size_t label_got, got;     /* bytes of it */
    struct ddp_request *into;  /* where it goes: asked for, */
    struct parcel *parcel;     /* or not */
};

static struct mailbox *mailbox(struct ddp_group *g, int rank)
{
    if (!g->mailbox)
        g->mailbox = xcalloc((size_t)g->layout.size, sizeof *g->mailbox);
    struct mailbox *b = g->mailbox[rank];
    if (!b) {
        b = g->mailbox[rank] = xcalloc(1, sizeof *b);
        b->rank = rank;
        b->next = g->mailboxes;
        g->mailboxes = b;
    }
    return b;
}

static void append(struct ddp_request **list, struct ddp_request *r)
{
    while (*list)
        list = &(*list)->next;
    r->next = NULL;
    *list = r;
}

/* ---- the stream: a ring or a connection ---- */

/* Local number of a rank that shares our memory, else -1. */
static int local_of(const struct ddp_group *g, int rank)
{
    const struct member *m = &g->layout.members[rank];
    return g->shm && m->host == g->layout.members[g->layout.rank].host ? m->local : -1;
}

static size_t ring_write(struct shm *s, int to, const char *data, size_t size)
{
    struct shm_ring *ring = shm_ring(s, s->me, to);
    uint64_t at = atomic_load_explicit(&ring->written, memory_order_relaxed);
    uint64_t used = at - atomic_load_explicit(&ring->read, memory_order_acquire);
    size_t n = SHM_RING - (size_t)used, where = at % SHM_RING;
    n = size < n ? size : n;
    size_t first = n < SHM_RING - where ? n : SHM_RING - where;
    memcpy(ring->data + where, data, first);
    memcpy(ring->data, data + first, n - first);
    if (n > 0) {
        atomic_store(&ring->written, at + n);
        shm_wake(s, to);
    }
    return n;
}

static size_t ring_read(struct shm *s, int from, char *data, size_t size)
{
    struct shm_ring *ring = shm_ring(s, from, s->me);
    uint64_t at = atomic_load_explicit(&ring->read, memory_order_relaxed);
    uint64_t there = atomic_load_explicit(&ring->written, memory_order_acquire) - at;
    size_t n = size < there ? size : (size_t)there, where = at % SHM_RING;
    size_t first = n < SHM_RING - where ? n : SHM_RING - where;
    memcpy(data, ring->data + where, first);
    memcpy(data + first, ring->data, n - first);
    if (n > 0) {
        atomic_store(&ring->read, at + n);
        shm_wake(s, from);
    }
    return n;
}

static ssize_t stream_send(struct ddp_group *g, int rank, const struct iovec *io, int nio,
                           struct ddp_err *err)
{
    int local = local_of(g, rank);
    if (local < 0)
        return net_send(g->net, rank, NET_MESSAGE, io, nio, err);
    size_t n = 0;
    for (int i = 0; i < nio; i++) {
        size_t k = ring_write(g->shm, local, io[i].iov_base, io[i].iov_len);
        n += k;
        if (k < io[i].iov_len)
            break;
    }
    return (ssize_t)n;
}

static ssize_t stream_recv(struct ddp_group *g, int rank, void *data, size_t size,
                           struct ddp_err *err)
{
    int local = local_of(g, rank);
    return local < 0 ? net_recv(g->net, rank, NET_MESSAGE, data, size, err)
                     : (ssize_t)ring_read(g->shm, local, data, size);
}

/* ---- sending ---- */

static int send_some(struct ddp_group *g, struct mailbox *b, struct ddp_err *err)
{
    while (b->out) {
        struct ddp_request *r = b->out;
        struct label label = {LABEL_MAGIC, (uint32_t)r->tag, r->bytes};
        struct iovec io[2];
        int nio = 0;
        size_t skip = 0;
        if (b->out_at < sizeof label)
            io[nio++] =
                (struct iovec){(char *)&label + b->out_at, sizeof label - b->out_at};
        else
            skip = b->out_at - sizeof label;
        if (r->bytes > skip)
            io[nio++] = (struct iovec){r->data + skip, r->bytes - skip};
        ssize_t n = stream_send(g, b->rank, io, nio, err);
        if (n <= 0)
            return (int)n;
        b->out_at += (size_t)n;
        if (b->out_at == sizeof label + r->bytes) {
            b->out = r->next;
            b->out_at = 0;
            r->ended = true;
        }
    }
    return 0;
}

/* ---- receiving ---- */

static int wrong_size(const struct mailbox *b, const struct ddp_request *r, int tag,
                      size_t bytes, struct ddp_err *err)
{
    return err_set(err, "rank %d has sent %zu bytes with tag %d where %zu are asked for",
                   b->rank, bytes, tag, r->bytes);
}

/* Take the first request for this tag out of the row. */
static struct ddp_request *take_asked(struct mailbox *b, int tag)
{
    for (struct ddp_request **at = &b->asked; *at; at = &(*at)->next) {
        struct ddp_request *r = *at;
        if (r->tag == tag) {
            *at = r->next;
            return r;
        }
    }
    return NULL;
}

static struct parcel *parcel_make(struct mailbox *b, int tag, size_t bytes)
{
    struct parcel *p = malloc(sizeof *p + bytes);
    if (!p)
        return NULL;
    *p = (struct parcel){.tag = tag, .bytes = bytes};
    struct parcel **at = &b->parcels;
    while (*at)
        at = &(*at)->next;
    *at = p;
    return p;
}

static void parcel_hand_over(struct mailbox *b, struct parcel *p, struct ddp_request *r)
{
    if (p->bytes > 0)
        memcpy(r->data, p->data, p->bytes);
    r->ended = true;
    struct parcel **at = &b->parcels;
    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
    free(p);
}

/* The label is complete: where does the message go? */
static int address(struct mailbox *b, struct ddp_err *err)
{
    if (b->label.magic != LABEL_MAGIC || b->label.tag > INT32_MAX)
        return err_set(err, "rank %d sends something that is not a message", b->rank);
    int tag = (int)b->label.tag;
    b->got = 0;
    b->into = take_asked(b, tag);
    if (b->into && b->into->bytes != b->label.bytes)
        return wrong_size(b, b->into, tag, b->label.bytes, err);
    if (!b->into) {
        b->parcel = parcel_make(b, tag, b->label.bytes);
        if (!b->parcel)
            return err_set(err,
                           "no memory for a message of %llu bytes with tag %d from rank "
                           "%d, which nobody has asked for yet",
                           (unsigned long long)b->label.bytes, tag, b->rank);
    }
    return 0;
}

static void arrived(struct mailbox *b)
{
    b->label_got = 0;
    if (b->into) {
        b->into->ended = true;
        b->into = NULL;
        return;
    }
    struct parcel *p = b->parcel;
    b->parcel = NULL;
    p->complete = true;
    if (p->taker)
        parcel_hand_over(b, p, p->taker);
}

/* Only as long as somebody waits for a message of this rank: the others stay in the
 * stream, which holds its sender back. */
static bool wanted(const struct mailbox *b)
{
    return b->asked || b->into || (b->parcel && b->parcel->taker);
}

static int recv_some(struct ddp_group *g, struct mailbox *b, int *culprit,
                     struct ddp_err *err)
{
    while (wanted(b)) {
        if (b->label_got < sizeof b->label) {
            ssize_t n = stream_recv(g, b->rank, (char *)&b->label + b->label_got,
                                    sizeof b->label - b->label_got, err);
            if (n <= 0)
                return (int)n;
            b->label_got += (size_t)n;
            if (b->label_got < sizeof b->label)
                continue;
            if (address(b, err) < 0) {
                *culprit = -1; /* it lives */
                return -1;
            }
        }
        if (b->got < b->label.bytes) {
            char *to = b->into ? b->into->data : b->parcel->data;
            ssize_t n =
                stream_recv(g, b->rank, to + b->got, b->label.bytes - b->got, err);
            if (n <= 0)
                return (int)n;
            b->got += (size_t)n;
        }
        if (b->got == b->label.bytes)
            arrived(b);
    }
    return 0;
}

/* ---- the verbs ---- */

int messages_progress(struct ddp_group *g, int *culprit, struct ddp_err *err)
{
    for (struct mailbox *b = g->mailboxes; b; b = b->next) {
        *culprit = b->rank;
        if (b->rank == g->layout.rank)
            continue; /* to oneself leads no stream: send_to_self() did it all */
        if (send_some(g, b, err) < 0 || recv_some(g, b, culprit, err) < 0)
            return -1;
    }
    return 0;
}

/* To myself: a parcel that is complete at once. */
static void send_to_self(struct mailbox *b, struct ddp_request *r)
{
    struct parcel *p = parcel_make(b, r->tag, r->bytes);
    if (!p)
        abort(); /* like xcalloc(): the user chose the size and has it twice already */
    if (r->bytes > 0)
        memcpy(p->data, r->data, r->bytes);
    p->complete = true;
    r->ended = true;
    struct ddp_request *asked = take_asked(b, r->tag);
    if (asked)
        parcel_hand_over(b, p, asked);
}

void messages_send(struct ddp_group *g, struct ddp_request *r)
{
    struct mailbox *b = mailbox(g, r->peer);
    if (r->peer == g->layout.rank)
        send_to_self(b, r);
    else
        append(&b->out, r);
}

void messages_recv(struct ddp_group *g, struct ddp_request *r)
{
    struct mailbox *b = mailbox(g, r->peer);
    struct parcel *p = b->parcels;
    while (p && (p->tag != r->tag || p->taker))
        p = p->next;
    if (!p) {
        append(&b->asked, r);
    } else if (p->bytes != r->bytes) {
        struct ddp_err err;
        wrong_size(b, r, p->tag, p->bytes, &err);
        group_break(g, -1, &err);
    } else if (p->complete) {
        parcel_hand_over(b, p, r);
    } else {
        p->taker = r;
    }
}

bool messages_ready(const struct ddp_group *g)
{
    for (const struct mailbox *b = g->mailboxes; b; b = b->next) {
        int local = local_of(g, b->rank);
        if (local < 0 || b->rank == g->layout.rank)
            continue;
        const struct shm_ring *in = shm_ring(g->shm, local, g->shm->me);
        const struct shm_ring *out = shm_ring(g->shm, g->shm->me, local);
        if (wanted(b) && atomic_load(&in->written) != atomic_load(&in->read))
            return true;
        if (b->out &&
            atomic_load(&out->written) - atomic_load(&out->read) < (uint64_t)SHM_RING)
            return true;
    }
    return false;
}

bool messages_await(const struct ddp_group *g, int rank)
{
    for (const struct mailbox *b = g->mailboxes; b; b = b->next) {
        bool me = b->rank == g->layout.rank;
        if ((wanted(b) || b->out) && !me &&
            (rank < 0 ? local_of(g, b->rank) >= 0 : b->rank == rank))
            return true;
    }
    return false;
}

void messages_drop(struct ddp_group *g)
{
    for (struct mailbox *b = g->mailboxes; b; b = b->next) {
        b->out = b->asked = b->into = NULL;
        for (struct parcel *p = b->parcels; p; p = p->next)
            p->taker = NULL;
    }
}

void messages_destroy(struct ddp_group *g)
{
    while (g->mailboxes) {
        struct mailbox *b = g->mailboxes;
        g->mailboxes = b->next;
        while (b->parcels) {
            struct parcel *p = b->parcels;
            b->parcels = p->next;
            free(p);
        }
        free(b);
    }
    free(g->mailbox);
}
