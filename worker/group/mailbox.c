/* worker/group/mailbox.c - see mailbox.h */
#include "worker/group/mailbox.h"

#include "common/mem.h"

#include <stdlib.h>
#include <string.h>

struct mailbox *mailbox_of(struct ddp_group *g, int rank)
{
    if (!g->mailbox)
        g->mailbox = xcalloc((size_t)g->layout.size, sizeof *g->mailbox);
    struct mailbox *b = g->mailbox[rank];
    if (b)
        return b;
    b = g->mailbox[rank] = xcalloc(1, sizeof *b);
    b->rank = rank;
    b->local =
        g->shm && layout_is_here(&g->layout, rank) ? g->layout.members[rank].local : -1;
    if (b->local >= 0) {
        b->ring_out = ring_writer(shm_ring(g->shm, g->shm->me, b->local));
        b->ring_in = ring_reader(shm_ring(g->shm, b->local, g->shm->me));
    }
    b->next = g->mailboxes;
    g->mailboxes = b;
    return b;
}

void mailboxes_drop(struct ddp_group *g)
{
    g->npending = 0;
    g->any = (struct request_queue){0};
    for (struct mailbox *b = g->mailboxes; b; b = b->next) {
        b->out = b->posted = (struct request_queue){0};
        b->into = NULL;
    }
}

void mailboxes_free(struct ddp_group *g)
{
    while (g->mailboxes) {
        struct mailbox *b = g->mailboxes;
        g->mailboxes = b->next;
        while (b->unexpected.first) {
            struct ddp_request *m = b->unexpected.first;
            b->unexpected.first = m->next;
            free(m);
        }
        free(b->ahead);
        free(b);
    }
    free(g->spare);
    free(g->mailbox);
}

/* ---- what is asked for ---- */

void queue_append(struct request_queue *row, struct ddp_request *r)
{
    r->next = NULL;
    *(row->last ? &row->last->next : &row->first) = r;
    row->last = r;
}

bool queue_remove(struct request_queue *row, struct ddp_request *r)
{
    struct ddp_request *before = NULL, **at = &row->first;
    for (; *at && *at != r; at = &(*at)->next)
        before = *at;
    if (!*at)
        return false;
    *at = r->next;
    if (row->last == r)
        row->last = before;
    return true;
}

/* Tags of users and numbers of collectives are separate. */
static struct ddp_request *find(const struct request_queue *row, int tag, uint32_t what)
{
    struct ddp_request *r = row->first;
    while (r && (r->tag != tag || (r->what == 0) != (what == 0)))
        r = r->next;
    return r;
}

struct ddp_request *mailbox_take_posted(struct ddp_group *g, struct mailbox *b, int tag,
                                        uint32_t what)
{
    struct ddp_request *of = find(&b->posted, tag, what), *any = find(&g->any, tag, what);
    if (any && (!of || any->serial < of->serial)) {
        queue_remove(&g->any, any);
        any->peer = b->rank;
        return any;
    }
    if (of)
        queue_remove(&b->posted, of);
    return of;
}

bool mailbox_needed(const struct mailbox *b)
{
    return b->posted.first || (b->into && b->into->kind == REQUEST_RECV);
}

/* ---- what came unasked ---- */

struct ddp_request *unexpected_add(struct ddp_group *g, struct mailbox *b, int tag,
                                   uint32_t what, size_t bytes)
{
    const size_t head = offsetof(struct ddp_request, coll); /* what a message has */
    char *room = bytes < SIZE_MAX / 2 ? malloc(head + bytes) : NULL;
    struct ddp_request *m = (struct ddp_request *)(void *)room;
    if (!m)
        return NULL;
    message_init(m, g, REQUEST_UNEXPECTED, b->rank, tag, what, room + head, bytes);
    m->serial = ++g->serial;
    queue_append(&b->unexpected, m);
    return m;
}

/* The first to arrive from any peer; creates all mailboxes. */
static struct ddp_request *find_any(struct ddp_group *g, struct ddp_request *r)
{
    struct ddp_request *first = NULL;
    for (int i = 0; i < g->layout.size; i++) {
        struct ddp_request *m = find(&mailbox_of(g, i)->unexpected, r->tag, r->what);
        if (m && (!first || m->serial < first->serial))
            first = m;
    }
    if (first)
        r->peer = first->peer;
    return first;
}

struct ddp_request *unexpected_find(struct ddp_group *g, struct ddp_request *r)
{
    return r->any ? find_any(g, r)
                  : find(&mailbox_of(g, r->peer)->unexpected, r->tag, r->what);
}

void unexpected_deliver(struct mailbox *b, struct ddp_request *m, struct ddp_request *r)
{
    bool whole = b->into != m;
    size_t come = whole ? m->bytes : b->got;
    if (come > 0)
        memcpy(r->data, m->data, come);
    if (whole)
        message_end(r->group, r);
    else
        b->into = r;
    queue_remove(&b->unexpected, m);
    free(m);
}
