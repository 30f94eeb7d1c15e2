/* worker/group/subgroup.c - groups made from a parent group
 *
 * The bootstrap uses messages of the parent: cards are gathered up a binomial tree of
 * the members, and all cards broadcast down, so that no rank talks to more than log2 of
 * them. Messages between two ranks are ordered, so groups made one after the other do
 * not mix. A hash of the member list is sent along, so that different lists are
 * reported; in the tree members are in the order of the parent, so that lists in
 * different orders meet, too.
 */
#include "worker/group/group.h"

#include "common/err.h"
#include "common/fnv.h"
#include "common/mem.h"
#include "common/scoped.h"
#include "worker/group/bootstrap.h"

#include <stdlib.h>
#include <string.h>

void group_leave_family(struct ddp_group *g)
{
    struct ddp_group *before = g->family;
    while (before->family != g)
        before = before->family;
    before->family = g->family;
}

/* ---- the meeting ---- */

int group_lists_differ(const struct ddp_group *g, int other, struct ddp_err *err)
{
    return err_set(err,
                   "ranks %d and %d disagree on the members of a group that both make: "
                   "they gave different lists of ranks, or one list in different orders",
                   g->layout.rank, other);
}

static void post(struct ddp_group *g, struct ddp_request *r, enum request_kind kind,
                 int peer, struct card *cards, int n)
{
    message_init(r, g, kind, peer, 0, 1 + COLL_BOOTSTRAP, cards,
                 (size_t)n * sizeof *cards);
    p2p_post(g, r);
}

static int await_message(struct ddp_group *g, enum request_kind kind, int peer,
                         struct card *cards, int n, struct ddp_err *err)
{
    struct ddp_request r;
    post(g, &r, kind, peer, cards, n);
    return group_wait(g, &r.ended, err);
}

/* How many members the subtree of member i has: the value of its lowest bit. */
static int span(int i, int n)
{
    int low = i & -i;
    return i > 0 && low < n - i ? low : n - i;
}

/* Gather: from each child the cards of its subtree, which it has checked. */
static int collect(const struct bootstrap *m, struct card *cards, struct ddp_err *err)
{
    struct ddp_group *g = m->parent;
    int me = m->rank, n = m->size, above = me & (me - 1);
    for (int i = me + 1; i < me + span(me, n); i += span(i, n)) {
        TRY(await_message(g, REQUEST_RECV, m->ranks[i], &cards[i], span(i, n), err));
        if (cards[i].members != cards[me].members) {
            group_lists_differ(g, m->ranks[i], err);
            return group_break(g, -1, err);
        }
    }
    return me == 0 ? 0
                   : await_message(g, REQUEST_SEND, m->ranks[above], &cards[me],
                                   span(me, n), err);
}

/* Broadcast: all cards to all children at once. */
static int spread(const struct bootstrap *m, struct card *cards, struct ddp_err *err)
{
    enum { BELOW = 32 };
    struct ddp_request r[BELOW];
    struct ddp_group *g = m->parent;
    int me = m->rank, n = m->size, above = me & (me - 1), nr = 0;
    if (me > 0 && await_message(g, REQUEST_RECV, m->ranks[above], cards, n, err) < 0)
        return -1;
    for (int i = me + 1; i < me + span(me, n); i += span(i, n))
        post(g, &r[nr++], REQUEST_SEND, m->ranks[i], cards, n);
    for (int i = 0; i < nr; i++)
        TRY(group_wait(g, &r[i].ended, err));
    return 0;
}

static int by_number(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

static int bootstrap_parent(const struct bootstrap *m, const struct card *card,
                            struct card *cards, struct ddp_err *err)
{
    size_t n = (size_t)m->size;
    OWNED int *order = xcalloc(n, sizeof *order);
    OWNED struct card *met = xcalloc(n, sizeof *met);
    memcpy(order, m->ranks, n * sizeof *order);
    qsort(order, n, sizeof *order, by_number);
    struct bootstrap tree = *m;
    const int *me = bsearch(&m->ranks[m->rank], order, n, sizeof *order, by_number);
    tree.ranks = order;
    tree.rank = (int)(me - order);
    met[tree.rank] = *card;
    TRY(collect(&tree, met, err));
    TRY(spread(&tree, met, err));
    for (size_t i = 0; i < n; i++) {
        const int *at = bsearch(&m->ranks[i], order, n, sizeof *order, by_number);
        cards[i] = met[at - order];
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

struct ddp_group *ddp_group_sub(struct ddp_group *g, const int *ranks, int n,
                                struct ddp_err *err)
{
    int me;
    if (group_check_failures(g, err) < 0 || (me = place_in(g, ranks, n, err)) < 0)
        return NULL;
    struct ddp_group *sub = group_new();
    sub->name = xasprintf("%s.%u", g->name, g->nsubgroups++);
    sub->timeout_ms = g->timeout_ms;
    sub->arena_bytes = g->arena_bytes;
    sub->alone = g->alone;
    sub->backend = g->backend;
    sub->family = g->family;
    g->family = sub;
    sub->card = g->card; /* but for where it listens */
    sub->card.members = fnv1a(FNV1A, ranks, (size_t)n * sizeof *ranks);
    const struct bootstrap m = {.parent = g, .ranks = ranks, .rank = me, .size = n};
    int rc = group_meet(sub, &m, bootstrap_parent, err);
    if (rc == 0)
        rc = group_open_backend(sub, err);
    if (rc < 0) {
        if (!g->broken)
            err_prefix(err, "rank %d cannot make the group '%s'", g->layout.rank,
                       sub->name);
        ddp_group_destroy(sub);
        return NULL;
    }
    return sub;
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
