/* worker/group/alltoall.c - gather, scatter and all_to_all by point-to-point messages
 *
 * Every block is sent directly to its receiver, all pairs at once: through shared
 * memory within a host, over streams of the pair between hosts. The ranks of a host first
 * announce their calls, as in the other collectives, so that mismatches are found. The
 * messages carry the number of the collective as their tag, and what it is.
 */
#include "worker/group/backend.h"

#include "common/err.h"
#include "common/mem.h"
#include "worker/group/reduce.h"

#include <limits.h>
#include <string.h>

static void add(struct ddp_group *g, struct coll *c, enum request_kind kind, int peer,
                const char *base, struct range r)
{
    message_init(&c->items[c->nitems++], g, kind, peer, (int)(c->number & INT_MAX),
                 1 + coll_what(c), coll_at(c, base, r.at), r.n * type_size(c->type));
}

/* This rank's own block is copied. */
static void keep(const struct coll *c, struct range from, struct range to)
{
    const char *a = coll_at(c, c->send, from.at);
    char *b = coll_at(c, c->recv, to.at);
    if (a != b && from.n > 0)
        memmove(b, a, from.n * type_size(c->type));
}

static void add_all(struct ddp_group *g, struct coll *c)
{
    int me = g->layout.rank, size = g->layout.size;
    struct range out, in;
    c->items = xcalloc(2 * (size_t)size, sizeof *c->items);
    if (coll_gives(c, me, me, &out) && coll_takes(c, me, me, &in))
        keep(c, out, in);
    for (int i = 1; i < size; i++) { /* each rank starts with another peer */
        int to = (me + i) % size, from = (me + size - i) % size;
        if (coll_takes(c, me, from, &in))
            add(g, c, REQUEST_RECV, from, c->recv, in);
        if (coll_gives(c, me, to, &out))
            add(g, c, REQUEST_SEND, to, c->send, out);
    }
}

int alltoall_advance(struct ddp_group *g, struct coll *c, struct ddp_err *err)
{
    if (c->state != COLL_WORKS) {
        int rc = shm_coll_meet(g->shm, c, false, err);
        if (rc != ADVANCE_DONE)
            return rc;
        c->state = COLL_WORKS;
        add_all(g, c);
        for (size_t i = 0; i < c->nitems && !g->broken; i++)
            p2p_post(g, &c->items[i]);
        if (g->broken) {
            *err = g->why;
            return ADVANCE_ERROR;
        }
    }
    while (c->nended < c->nitems && c->items[c->nended].ended)
        c->nended++;
    return c->nended == c->nitems ? ADVANCE_DONE : ADVANCE_LATER;
}
