/* worker/group/subgroup.c - groups made from a parent group
 *
 * The bootstrap uses messages of the parent: an all-gather of the cards by Bruck's
 * algorithm, in which a rank sends to log2 of the members and receives from as many.
 * Messages between two ranks are ordered, so groups made one after the other do not mix.
 * A hash of the member list is sent along, so that different lists are reported; the
 * members exchange in the order of the parent, so that lists in different orders meet,
 * too.
 */
#include "worker/group/group.h"

#include "common/err.h"
#include "common/fnv.h"
#include "common/mem.h"
#include "common/scoped.h"
#include "worker/group/bootstrap.h"

#include <stdlib.h>
#include <string.h>

/* ---- the meeting ---- */

int group_lists_differ(const struct ddp_group *g, int other, struct ddp_err *err)
{
    return err_set(err,
                   "ranks %d and %d disagree on the members of a group that both make: "
                   "they gave different lists of ranks, or one list in different orders",
                   g->layout.rank, other);
}

static int by_number(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

/* Send n cards to one rank while as many come from another. */
static int swap_cards(struct ddp_group *g, struct card *mine, int to, struct card *theirs,
                      int from, int n, struct ddp_err *err)
{
    struct ddp_request in, out;
    size_t bytes = (size_t)n * sizeof *mine;
    message_init(&in, g, REQUEST_RECV, from, 0, 1 + COLL_BOOTSTRAP, theirs, bytes);
    message_init(&out, g, REQUEST_SEND, to, 0, 1 + COLL_BOOTSTRAP, mine, bytes);
    p2p_post(g, &in);
    p2p_post(g, &out);
    TRY(group_wait(g, &in, NULL, err));
    TRY(group_wait(g, &out, NULL, err));
    if (mine->members == theirs->members)
        return 0;
    group_lists_differ(g, from, err);
    return group_break(g, -1, err);
}

/* After k members' cards are known, mine first and then in the order of the parent, those
 * of the next k come from the member behind them. */
static int bootstrap_parent(struct bootstrap *m, struct ddp_err *err)
{
    int n = m->size;
    size_t width = sizeof *m->ranks;
    OWNED int *order = xcalloc((size_t)n, width);
    OWNED struct card *met = xcalloc((size_t)n, sizeof *met);
    memcpy(order, m->ranks, (size_t)n * width);
    qsort(order, (size_t)n, width, by_number);
    const int *mine = bsearch(&m->ranks[m->rank], order, (size_t)n, width, by_number);
    int me = (int)(mine - order);
    met[0] = *m->card;
    for (int k = 1; k < n; k *= 2) {
        TRY(swap_cards(m->parent, met, order[(me + n - k) % n], met + k,
                       order[(me + k) % n], k < n - k ? k : n - k, err));
    }
    for (int i = 0; i < n; i++) {
        const int *at = bsearch(&m->ranks[i], order, (size_t)n, width, by_number);
        m->cards[i] = met[((int)(at - order) - me + n) % n];
    }
    return 0;
}

/* ---- making ---- */

/* This rank's place among `ranks`, or -1. */
static int place_in(const struct ddp_group *g, const int *ranks, int n,
                    struct ddp_err *err)
{
    int me = -1, size = g->layout.size;
    if (n < 1 || n > size || !ranks)
        return err_set(err, "a group of %d out of %d ranks%s", n, size,
                       ranks ? "" : ", without a list of them");
    OWNED char *seen = xcalloc((size_t)size, 1);
    for (int i = 0; i < n; i++) {
        int r = ranks[i];
        if (r < 0 || r >= size)
            return err_set(err, "rank %d in a group made from %d ranks", r, size);
        if (seen[r]++)
            return err_set(err, "rank %d is twice in a group made from %d ranks", r,
                           size);
        me = r == g->layout.rank ? i : me;
    }
    return me >= 0
               ? me
               : err_set(err, "rank %d makes a group that it is not in", g->layout.rank);
}

/* A group of these ranks, of which this one is at `me`. */
static struct ddp_group *make(struct ddp_group *g, char *owned_name, size_t arena_bytes,
                              const int *ranks, int n, int me, struct ddp_err *err)
{
    struct ddp_group *sub = group_new();
    sub->name = owned_name;
    sub->timeout_ms = g->timeout_ms;
    sub->arena_bytes = arena_bytes;
    sub->alone = g->alone;
    sub->backend = g->backend;
    sub->family = g->family;
    g->family = sub;
    sub->card = g->card; /* but for where it listens */
    sub->card.members = fnv1a(FNV1A, ranks, (size_t)n * sizeof *ranks);
    struct bootstrap m = {.parent = g, .ranks = ranks, .rank = me, .size = n};
    if (group_meet(sub, &m, bootstrap_parent, err) < 0) {
        if (!g->broken)
            err_prefix(err, "rank %d cannot make the group '%s'", g->layout.rank,
                       sub->name);
        ddp_group_destroy(sub);
        return NULL;
    }
    return sub;
}

struct ddp_group *ddp_group_sub(struct ddp_group *g, const int *ranks, int n,
                                struct ddp_err *err)
{
    int me;
    struct ddp_err unwanted;
    err = err ? err : &unwanted;
    if (group_check_failures(g, err) < 0 || (me = place_in(g, ranks, n, err)) < 0)
        return NULL;
    char *name = xasprintf("%s.%u", g->name, g->nsubgroups++);
    return make(g, name, g->arena_bytes, ranks, n, me, err);
}

int group_replace(struct ddp_group **g, const char *name, size_t arena_bytes,
                  struct ddp_err *err)
{
    int n = (*g)->layout.size;
    OWNED int *all = xcalloc((size_t)n, sizeof *all);
    for (int i = 0; i < n; i++)
        all[i] = i;
    TRY(group_check_failures(*g, err));
    struct ddp_group *sub =
        make(*g, xstrdup(name), arena_bytes, all, n, (*g)->layout.rank, err);
    if (!sub)
        return -1;
    ddp_group_destroy(*g);
    *g = sub;
    return 0;
}

struct wish {
    int32_t colour, key, rank;
};

static int by_wish(const void *a, const void *b)
{
    const struct wish *x = a, *y = b;
    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    return x->rank - y->rank;
}

int ddp_group_split(struct ddp_group *g, int colour, int key, struct ddp_group **sub,
                    struct ddp_err *err)
{
    size_t size = (size_t)g->layout.size;
    int n = 0;
    struct wish mine = {colour, key, g->layout.rank};
    OWNED struct wish *all = xcalloc(size, sizeof *all);
    OWNED int *ranks = xcalloc(size, sizeof *ranks);
    *sub = NULL;
    TRY(group_share(g, COLL_ALL_GATHER, &mine, all, sizeof mine, err));
    if (colour < 0)
        return 0;
    qsort(all, size, sizeof *all, by_wish);
    for (size_t i = 0; i < size; i++) {
        if (all[i].colour == colour)
            ranks[n++] = all[i].rank;
    }
    *sub = ddp_group_sub(g, ranks, n, err);
    return *sub ? 0 : -1;
}
