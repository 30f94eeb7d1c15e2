/* worker/group/failure_watch.c - failure detection while NCCL or MPI moves the data
 *
 * NCCL and MPI show neither the progress of a collective nor the rank it waits for, and
 * do not report a rank that has died or calls something else. So the ranks of a group
 * with one of these backends watch each other:
 *
 * on a host, every rank records what it calls in shared memory, and a rank that has
 * waited for a while compares it with its own call;
 *
 * between hosts, a rank watches those that are 1, 2, 4, ... hosts further on by an idle
 * stream, and reports its calls to them, so that a lost host or a mismatched call is
 * found by at least one.
 *
 * A rank that leaves without an error says how many collectives it has entered, so that
 * it is blamed only by ranks that wait in a later one.
 */
#include "common/mem.h"
#include "worker/group/backend.h"

bool watch_wanted(const struct ddp_group *g)
{
    return g->backend && g->backend->open && g->layout.size > 1;
}

bool watch_blind(const struct ddp_group *g)
{
    const struct ddp_request *first = g->colls.first;
    return g->backend->open && !g->broken &&
           (first ? !coll_stays_ours(&first->coll) : g->npending > 0);
}

void watch_enter(struct ddp_group *g, const struct call *call)
{
    if (g->shm && watch_wanted(g))
        shm_record_call(g->shm, call);
}

/* Ranks with our number on their hosts, so that the work is spread. */
void watch_choose(struct ddp_group *g)
{
    const struct layout *l = &g->layout;
    const struct member *me = &l->members[l->rank];
    tcp_watch_none(g->tcp, g->colls.first ? g->colls.first->coll.number : g->number);
    if (!watch_wanted(g))
        return;
    for (int far = 1; far < l->nhosts; far *= 2) {
        int n;
        const int *there = layout_host(l, (me->host + far) % l->nhosts, &n);
        tcp_watch(g->tcp, there[me->local % n]);
    }
    if (g->backend->watch)
        g->backend->watch(g);
}

bool watch_came(const struct ddp_group *g, int local)
{
    uint64_t number = g->colls.first ? g->colls.first->coll.number : 0;
    return shm_recorded_call(g->shm, local, number, &(struct call){0}) >= number;
}

/* False if it has not come so far, or is too far ahead to know. */
static bool differs(const struct ddp_group *g, int local, uint64_t number,
                    struct ddp_err *err)
{
    const struct call *mine = &g->calls[number % CALLS];
    struct call theirs = {.number = number};
    if (mine->number != number ||
        shm_recorded_call(g->shm, local, number, &theirs) != number ||
        coll_same(mine, &theirs))
        return false;
    coll_disagree(g->layout.rank, mine, g->shm->ranks[local], &theirs, err);
    return true;
}

bool watch_contradicted(const struct ddp_group *g, struct ddp_err *err)
{
    if (!g->shm || !g->colls.first || !watch_wanted(g))
        return false;
    for (int i = 0; i < g->shm->n; i++) {
        if (i != g->shm->me && differs(g, i, g->colls.first->coll.number, err))
            return true;
    }
    return false;
}

bool watch_review(struct ddp_group *g, struct ddp_err *err)
{
    if (!watch_due(g))
        return false;
    uint64_t from = g->reviewed + 1;
    g->reviewed = g->number;
    if (!g->shm || !watch_wanted(g))
        return false;
    for (uint64_t k = from; k <= g->number; k++) {
        if (differs(g, (g->shm->me + 1) % g->shm->n, k, err))
            return true;
    }
    return false;
}

/* The ranks that watch this one. */
void watch_leave(struct ddp_group *g)
{
    const struct layout *l = &g->layout;
    if (!g->tcp || !watch_wanted(g) || g->broken)
        return;
    const struct member *me = &l->members[l->rank];
    OWNED int *ranks = xcalloc((size_t)l->size, sizeof *ranks);
    int mine, n, nranks = 0;
    layout_host(l, me->host, &mine);
    for (int far = 1; far < l->nhosts; far *= 2) {
        const int *there = layout_host(l, (me->host - far + l->nhosts) % l->nhosts, &n);
        for (int i = 0; i < n; i++) {
            if (i % mine == me->local)
                ranks[nranks++] = there[i];
        }
    }
    tcp_announce_leave(g->tcp, ranks, nranks);
}
