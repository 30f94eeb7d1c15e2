/* worker/group/mailbox.c - see mailbox.h */
#include "worker/group/mailbox.h"

#include "common/mem.h"

#include <stdlib.h>
#include <string.h>

/* Local number of a rank that shares our memory, else -1. */
static int local_of(const struct ddp_group *g, int rank)
{
    const struct member *m = &g->layout.members[rank];
    return g->shm && m->host == g->layout.members[g->layout.rank].host ? m->local : -1;
}

struct mailbox *mailbox_of(struct ddp_group *g, int rank)
{
    if (!g->mailbox)
        g->mailbox = xcalloc((size_t)g->layout.size, sizeof *g->mailbox);
    struct mailbox *b = g->mailbox[rank];
    if (b)
        return b;
    b = g->mailbox[rank] = xcalloc(1, sizeof *b);
    b->rank = rank;
    b->local = local_of(g, rank);
    b->behind = &b->parcels;
    if (b->local >= 0) {
        b->ring_out = ring_writer(shm_ring(g->shm, g->shm->me, b->local));
        b->ring_in = ring_reader(shm_ring(g->shm, b->local, g->shm->me));
    }
    b->next = g->mailboxes;
    g->mailboxes = b;
    return b;
}

void mailbox_free(struct mailbox *b)
{
    while (b->parcels) {
        struct parcel *p = b->parcels;
        b->parcels = p->next;
        free(p);
    }
    free(b->ahead);
    free(b);
}

/* ---- what is asked for ---- */

void queue_append(struct request_queue *row, struct ddp_request *r)
{
    r->next = NULL;
    if (row->last)
        row->last->next = r;
    else
        row->first = r;
    row->last = r;
}

bool queue_remove(struct request_queue *row, struct ddp_request *r)
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

/* The user's tags and the numbers of collectives are two things. */
static bool answers(const struct ddp_request *r, int tag, uint32_t what)
{
    return r->tag == tag && (r->what == 0) == (what == 0);
}

static struct ddp_request *find(const struct request_queue *row, int tag, uint32_t what)
{
    struct ddp_request *r = row->first;
    while (r && !answers(r, tag, what))
        r = r->next;
    return r;
}

struct ddp_request *mailbox_take_asked(struct ddp_group *g, struct mailbox *b, int tag,
                                       uint32_t what)
{
    struct ddp_request *of = find(&b->asked, tag, what), *any = find(&g->any, tag, what);
    if (any && (!of || any->serial < of->serial)) {
        queue_remove(&g->any, any);
        any->peer = b->rank;
        return any;
    }
    if (of)
        queue_remove(&b->asked, of);
    return of;
}

bool mailbox_needed(const struct mailbox *b)
{
    return b->asked.first || b->into || (b->parcel && b->parcel->taker);
}

/* ---- what came unasked ---- */

struct parcel *parcel_make(struct ddp_group *g, struct mailbox *b, int tag, uint32_t what,
                           size_t bytes)
{
    struct parcel *p = bytes < SIZE_MAX / 2 ? malloc(sizeof *p + bytes) : NULL;
    if (!p)
        return NULL;
    *p =
        (struct parcel){.tag = tag, .what = what, .bytes = bytes, .serial = ++g->parcels};
    *b->behind = p;
    b->behind = &p->next;
    return p;
}

static struct parcel *find_of(const struct mailbox *b, const struct ddp_request *r)
{
    struct parcel *p = b->parcels;
    while (p && (!answers(r, p->tag, p->what) || p->taker))
        p = p->next;
    return p;
}

/* What came first, of whomever; from now on all may send me something. */
static struct parcel *find_any(struct ddp_group *g, struct ddp_request *r)
{
    struct parcel *first = NULL;
    for (int i = 0; i < g->layout.size; i++) {
        struct parcel *p = find_of(mailbox_of(g, i), r);
        if (p && (!first || p->serial < first->serial)) {
            first = p;
            r->peer = i;
        }
    }
    return first;
}

struct parcel *parcel_find(struct ddp_group *g, struct ddp_request *r)
{
    return r->any ? find_any(g, r) : find_of(mailbox_of(g, r->peer), r);
}

void parcel_hand_over(struct mailbox *b, struct parcel *p, struct ddp_request *r)
{
    if (p->bytes > 0)
        memcpy(r->data, p->data, p->bytes);
    message_end(r->group, r);
    struct parcel **at = &b->parcels;
    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
    if (!p->next)
        b->behind = at;
    free(p);
}
