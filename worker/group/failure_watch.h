/* worker/group/failure_watch.h - failure detection while NCCL or MPI moves the data
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
#ifndef WORKER_GROUP_FAILURE_WATCH_H
#define WORKER_GROUP_FAILURE_WATCH_H

#include "worker/group/group.h"

/* watch_wanted(): another library moves the group's data. watch_blind(): and we are
 * waiting for it. */
bool watch_wanted(const struct ddp_group *g);
bool watch_blind(const struct ddp_group *g);

/* Record a collective that is being entered. */
void watch_enter(struct ddp_group *g, const struct call *call);
/* Tell the TCP transport which ranks of other hosts to watch. */
void watch_choose(struct ddp_group *g);
/* Has this rank of our host entered the current collective? */
bool watch_came(const struct ddp_group *g, int local);
/* Does a rank of this host call something else than this rank? */
bool watch_contradicted(const struct ddp_group *g, struct ddp_err *err);
/* Compare past calls with those of the next rank of our host. A collective may end well
 * although it is wrong: NCCL and MPI do not compare operations, nor types of one size. */
bool watch_review(struct ddp_group *g, struct ddp_err *err);
enum {
    WATCH_REVIEWED = CALLS / 2
}; /* collectives per comparison: the next rank may be ahead */
static inline bool watch_due(const struct ddp_group *g)
{
    return g->number - g->reviewed >= WATCH_REVIEWED;
}
/* Tell the ranks that watch us that we leave without an error. */
void watch_leave(struct ddp_group *g);

#endif
