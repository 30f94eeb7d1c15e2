/* worker/group/messages.c - see messages.h */
#include "worker/group/messages.h"

#include "common/err.h"
#include "common/mem.h"

#include <stdlib.h>
#include <string.h>

struct label { /* precedes a message in the stream */
    uint32_t magic, tag;
    uint64_t bytes;
    uint32_t what, unused; /* as in struct ddp_request */
};

enum { LABEL_MAGIC = 0x6d706464, LABEL_BYE = 0x62706464 };

/* A message that came, or is coming, unasked. */
struct parcel {
    struct parcel *next;
    int tag;
    uint32_t what;
    uint64_t serial; /* in the order in which they came, from whomever */
    size_t bytes;
    bool complete;
    struct ddp_request *taker; /* who has asked for it meanwhile */
    char data[];
};

struct mailbox {
    struct mailbox *next; /* all that exist */
    int rank;
    struct row out;           /* to be sent */
    size_t out_at;            /* bytes of the first that are sent, label included */
    struct row asked;         /* to be received */
    struct parcel *parcels;   /* owned, in the order they came */
    struct label label;       /* of the message coming in */
    size_t label_got, got;    /* bytes of it */
    struct ddp_request *into; /* where it goes: asked for, */
    struct parcel *parcel;    /* or not */
    bool left;                /* has said goodbye: there will be no more */
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

void row_append(struct row *row, struct ddp_request *r)
{
    r->next = NULL;
    if (row->last)
        row->last->next = r;
    else
        row->first = r;
    row->last = r;
}

bool row_remove(struct row *row, struct ddp_request *r)
{
    struct ddp_request *before = NULL, *at = row->first;
    for (; at && at != r; at = at->next)
        before = at;
    if (!at)
        return false;
    if (before)
        before->next = r->next;
    else
        row->first = r->next;
    if (row->last == r)
        row->last = before;
    return true;
}

static void end(struct ddp_group *g, struct ddp_request *r)
{
    r->ended = true;
    g->npending--;
    if (r->source)
        *r->source = r->peer;
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
        s->moves++;
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
        s->moves++;
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
    struct iovec io = {data, size};
    return local < 0 ? net_recv(g->net, rank, NET_MESSAGE, &io, 1, err)
                     : (ssize_t)ring_read(g->shm, local, data, size);
}

/* ---- sending ---- */

static int send_some(struct ddp_group *g, struct mailbox *b, struct ddp_err *err)
{
    while (b->out.first) {
        struct ddp_request *r = b->out.first;
        struct label label = {LABEL_MAGIC, (uint32_t)r->tag, r->bytes, r->what, 0};
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
            row_remove(&b->out, r);
            b->out_at = 0;
            end(g, r);
        }
    }
    return 0;
}

/* ---- receiving ---- */

static int wrong_size(const struct mailbox *b, const struct ddp_request *r, size_t bytes,
                      struct ddp_err *err)
{
    if (r->what) {
        char text[128];
        coll_describe(r->what - 1, 0, text, sizeof text);
        return err_set(err, "rank %d gives %zu bytes to the %s where %zu are expected",
                       b->rank, bytes, text, r->bytes);
    }
    return err_set(err, "rank %d has sent %zu bytes with tag %d where %zu are asked for",
                   b->rank, bytes, r->tag, r->bytes);
}

/* Are these two, the one sent and the one asked for, the same message? */
static int fits(const struct mailbox *b, const struct ddp_request *r, size_t bytes,
                uint32_t what, struct ddp_err *err)
{
    struct call here = {(uint64_t)r->tag, 0, r->what - 1};
    struct call there = {(uint64_t)r->tag, 0, what - 1};
    if (what != r->what)
        return coll_disagree(r->group->layout.rank, &here, b->rank, &there, err);
    return bytes == r->bytes ? 0 : wrong_size(b, r, bytes, err);
}

/* The user's tags and the numbers of collectives are two things. */
static bool answers(const struct ddp_request *r, int tag, uint32_t what)
{
    return r->tag == tag && (r->what == 0) == (what == 0);
}

static struct ddp_request *find(const struct row *row, int tag, uint32_t what)
{
    struct ddp_request *r = row->first;
    while (r && !answers(r, tag, what))
        r = r->next;
    return r;
}

/* Take the first request for this message out of its row. */
static struct ddp_request *take_asked(struct ddp_group *g, struct mailbox *b, int tag,
                                      uint32_t what)
{
    struct ddp_request *of = find(&b->asked, tag, what), *any = find(&g->any, tag, what);
    if (any && (!of || any->serial < of->serial)) {
        row_remove(&g->any, any);
        any->peer = b->rank;
        return any;
    }
    if (of)
        row_remove(&b->asked, of);
    return of;
}

static struct parcel *parcel_make(struct ddp_group *g, struct mailbox *b, int tag,
                                  uint32_t what, size_t bytes)
{
    struct parcel *p = bytes < SIZE_MAX / 2 ? malloc(sizeof *p + bytes) : NULL;
    if (!p)
        return NULL;
    *p =
        (struct parcel){.tag = tag, .what = what, .bytes = bytes, .serial = ++g->parcels};
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
    end(r->group, r);
    struct parcel **at = &b->parcels;
    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
    free(p);
}

/* The label is complete: where does the message go? */
static int address(struct ddp_group *g, struct mailbox *b, struct ddp_err *err)
{
    const struct label *l = &b->label;
    if (l->magic == LABEL_BYE) {
        b->left = true;
        return 0;
    }
    if (l->magic != LABEL_MAGIC || l->tag > INT32_MAX)
        return err_set(err, "rank %d sends something that is not a message", b->rank);
    b->got = 0;
    b->into = take_asked(g, b, (int)l->tag, l->what);
    if (b->into)
        return fits(b, b->into, l->bytes, l->what, err);
    b->parcel = parcel_make(g, b, (int)l->tag, l->what, l->bytes);
    if (!b->parcel)
        return err_set(err,
                       "no memory for a message of %llu bytes with tag %u from rank %d, "
                       "which nobody has asked for yet",
                       (unsigned long long)l->bytes, l->tag, b->rank);
    return 0;
}

static void arrived(struct ddp_group *g, struct mailbox *b)
{
    b->label_got = 0;
    if (b->into) {
        end(g, b->into);
        b->into = NULL;
        return;
    }
    struct parcel *p = b->parcel;
    b->parcel = NULL;
    p->complete = true;
    if (p->taker)
        parcel_hand_over(b, p, p->taker);
}

/* Is a message of this very rank awaited? */
static bool needed(const struct mailbox *b)
{
    return b->asked.first || b->into || (b->parcel && b->parcel->taker);
}

/* Only as long as somebody waits for a message of this rank: the others stay in the
 * stream, which holds its sender back. */
static bool wanted(const struct ddp_group *g, const struct mailbox *b)
{
    return needed(b) || (g->any.first && !b->left);
}

static int has_left(const struct ddp_group *g, const struct mailbox *b,
                    struct ddp_err *err)
{
    char who[128];
    return err_set(err, "%s has left the group",
                   layout_who(&g->layout, b->rank, who, sizeof who));
}

static int recv_label(struct ddp_group *g, struct mailbox *b, int *culprit,
                      struct ddp_err *err)
{
    ssize_t n = stream_recv(g, b->rank, (char *)&b->label + b->label_got,
                            sizeof b->label - b->label_got, err);
    if (n <= 0)
        return (int)n;
    b->label_got += (size_t)n;
    if (b->label_got == sizeof b->label && address(g, b, err) < 0) {
        *culprit = -1; /* it lives */
        return -1;
    }
    return 1;
}

static int recv_some(struct ddp_group *g, struct mailbox *b, int *culprit,
                     struct ddp_err *err)
{
    while (wanted(g, b)) {
        if (b->left)
            return has_left(g, b, err);
        if (b->label_got < sizeof b->label) {
            int rc = recv_label(g, b, culprit, err);
            if (rc <= 0)
                return rc;
            if (b->label_got < sizeof b->label || b->left)
                continue;
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
            arrived(g, b);
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
    return err_set(err, "a message from anybody is awaited, but all others have left");
}

int messages_progress(struct ddp_group *g, int *culprit, struct ddp_err *err)
{
    if (g->npending == 0)
        return 0;
    for (struct mailbox *b = g->mailboxes; b; b = b->next) {
        *culprit = b->rank;
        if (b->rank == g->layout.rank)
            continue; /* to oneself leads no stream: send_to_self() did it all */
        if (send_some(g, b, err) < 0 || recv_some(g, b, culprit, err) < 0)
            return -1;
    }
    return g->any.first ? all_have_left(g, culprit, err) : 0;
}

/* To myself: a parcel that is complete at once. */
static void send_to_self(struct ddp_group *g, struct mailbox *b, struct ddp_request *r)
{
    struct parcel *p = parcel_make(g, b, r->tag, r->what, r->bytes);
    if (!p)
        abort(); /* like xcalloc(): the user chose the size and has it twice already */
    if (r->bytes > 0)
        memcpy(p->data, r->data, r->bytes);
    p->complete = true;
    end(g, r);
    struct ddp_request *asked = take_asked(g, b, r->tag, r->what);
    struct ddp_err err;
    if (asked && fits(b, asked, p->bytes, p->what, &err) < 0)
        group_break(g, -1, &err);
    else if (asked)
        parcel_hand_over(b, p, asked);
}

void messages_send(struct ddp_group *g, struct ddp_request *r)
{
    struct mailbox *b = mailbox(g, r->peer);
    g->npending++;
    if (r->peer == g->layout.rank)
        send_to_self(g, b, r);
    else
        row_append(&b->out, r);
}

static struct parcel *parcel_find(const struct mailbox *b, const struct ddp_request *r)
{
    struct parcel *p = b->parcels;
    while (p && (!answers(r, p->tag, p->what) || p->taker))
        p = p->next;
    return p;
}

/* What came first, of whomever; from now on all may send me something. */
static struct parcel *parcel_find_any(struct ddp_group *g, struct ddp_request *r)
{
    struct parcel *first = NULL;
    for (int i = 0; i < g->layout.size; i++) {
        struct parcel *p = parcel_find(mailbox(g, i), r);
        if (p && (!first || p->serial < first->serial)) {
            first = p;
            r->peer = i;
        }
    }
    return first;
}

void messages_recv(struct ddp_group *g, struct ddp_request *r)
{
    struct ddp_err err;
    struct parcel *p = r->any ? parcel_find_any(g, r) : NULL;
    struct mailbox *b = mailbox(g, r->peer);
    p = r->any ? p : parcel_find(b, r);
    g->npending++;
    r->serial = ++g->serial;
    if (!p)
        row_append(r->any ? &g->any : &b->asked, r);
    else if (fits(b, r, p->bytes, p->what, &err) < 0)
        group_break(g, -1, &err);
    else if (p->complete)
        parcel_hand_over(b, p, r);
    else
        p->taker = r;
}

/* Of one that is already coming, a taker steps back and it stays a parcel. */
static bool cancel_recv(struct ddp_group *g, struct mailbox *b, struct ddp_request *r)
{
    if (row_remove(r->any && b->into != r ? &g->any : &b->asked, r))
        return true;
    if (!b->parcel || b->parcel->taker != r)
        return false;
    b->parcel->taker = NULL;
    return true;
}

bool messages_cancel(struct ddp_group *g, struct ddp_request *r)
{
    struct mailbox *b = mailbox(g, r->peer);
    bool under_way = b->out.first == r && b->out_at > 0;
    bool off = r->kind == REQUEST_SEND ? !under_way && row_remove(&b->out, r)
                                       : cancel_recv(g, b, r);
    g->npending -= off;
    return off;
}

/* After this nobody waits for me: said where there is a stream, and room in it. */
void messages_say_goodbye(struct ddp_group *g)
{
    struct label bye = {.magic = LABEL_BYE};
    struct iovec io = {&bye, sizeof bye};
    struct ddp_err unwanted;
    for (const struct mailbox *b = g->mailboxes; b && g->net && !g->broken; b = b->next) {
        if (local_of(g, b->rank) < 0 && b->out_at == 0 && net_has_stream(g->net, b->rank))
            net_send(g->net, b->rank, NET_MESSAGE, &io, 1, &unwanted);
    }
}

bool messages_ready(const struct ddp_group *g)
{
    for (const struct mailbox *b = g->npending ? g->mailboxes : NULL; b; b = b->next) {
        int local = local_of(g, b->rank);
        if (local < 0 || b->rank == g->layout.rank)
            continue;
        const struct shm_ring *in = shm_ring(g->shm, local, g->shm->me);
        const struct shm_ring *out = shm_ring(g->shm, g->shm->me, local);
        if (wanted(g, b) && atomic_load(&in->written) != atomic_load(&in->read))
            return true;
        if (b->out.first &&
            atomic_load(&out->written) - atomic_load(&out->read) < (uint64_t)SHM_RING)
            return true;
    }
    return false;
}

bool messages_await(const struct ddp_group *g, int rank)
{
    for (const struct mailbox *b = g->npending ? g->mailboxes : NULL; b; b = b->next) {
        bool me = b->rank == g->layout.rank;
        if ((wanted(g, b) || b->out.first) && !me &&
            (rank < 0 ? local_of(g, b->rank) >= 0 : b->rank == rank))
            return true;
    }
    return false;
}

bool messages_need(const struct ddp_group *g, int rank)
{
    const struct mailbox *b = g->mailbox ? g->mailbox[rank] : NULL;
    return b && (needed(b) || b->out.first);
}

void messages_left(struct ddp_group *g, int rank)
{
    mailbox(g, rank)->left = true;
}

void messages_drop(struct ddp_group *g)
{
    g->npending = 0;
    g->any = (struct row){NULL, NULL};
    for (struct mailbox *b = g->mailboxes; b; b = b->next) {
        b->out = b->asked = (struct row){NULL, NULL};
        b->into = NULL;
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
