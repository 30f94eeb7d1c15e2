/* worker/group/watch.h - what the others do while somebody else's library moves the data
 *
 * When NCCL or MPI has a collective, we see neither who is waited for nor that anything
 * moves, and neither library tells of a rank that has died or that calls something else.
 * So groups of these backends keep watch beside them:
 *
 *   on a host        every rank leaves word of what it calls in the shared memory, where
 *                    whoever has waited for a while compares it with its own call
 *   between hosts    a rank watches those that are 1, 2, 4, ... hosts further on, by a
 *                    stream that stays silent, and tells them what it calls; whose host
 *                    is gone, or who calls something else, is found by at least one
 *
 * One that leaves in order says on those streams how many collectives it has entered, so
 * that it is blamed only by those that wait in a later one.
 */
#ifndef WORKER_GROUP_WATCH_H
#define WORKER_GROUP_WATCH_H

#include "worker/group/group.h"

/* Are the group's data moved by somebody else's library, and is it that we wait for? */
bool watch_wanted(const struct ddp_group *g);
bool watch_blind(const struct ddp_group *g);

/* Leave word of a collective that is being entered. */
void watch_enter(struct ddp_group *g, const struct call *call);
/* Those on other hosts that tcp_look() shall look at, too. */
void watch_choose(struct ddp_group *g);
/* Has this rank of our host entered the collective that we are in? */
bool watch_came(const struct ddp_group *g, int local);
/* Does a rank of this host call otherwise what we are in? */
bool watch_contradicted(const struct ddp_group *g, struct ddp_err *err);
/* Now and then: has the next rank of our host called what we have? A collective that goes
 * well may be none: NCCL and MPI do not compare operations, nor types of one size. */
bool watch_review(struct ddp_group *g, struct ddp_err *err);
enum { WATCH_REVIEWED = CALLS / 2 }; /* collectives at once: the next rank may be ahead */
static inline bool watch_due(const struct ddp_group *g)
{
    return g->number - g->reviewed >= WATCH_REVIEWED;
}
/* To those that watch us: we leave in order. */
void watch_leave(struct ddp_group *g);

#endif
