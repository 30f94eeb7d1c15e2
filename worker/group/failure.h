/* worker/group/failure.h - the first failure, and how all ranks report the same one
 *
 * A rank whose group breaks closes its streams, which looks to its neighbours as if it
 * had died. So the cause is sent before: first into the shared memory of the host, then
 * to other hosts. The rank that finds a cause sends it to all (group_break() in
 * group.h); a rank that receives it forwards it to those it has streams with, since the
 * finder may have been killed before it was done.
 */
#ifndef WORKER_GROUP_FAILURE_H
#define WORKER_GROUP_FAILURE_H

#include "worker/group/group.h"

/* Has another rank reported a failure? Then the rank to blame (-1: none), and why. */
bool group_failure_told(struct ddp_group *g, int *culprit, struct ddp_err *theirs);
/* The same, waiting a moment: the report is sent before a stream is closed, but may
 * take another path. */
bool group_failure_told_soon(struct ddp_group *g, int *culprit, struct ddp_err *theirs);
/* Break the group with a cause that another rank has reported; returns -1. */
int group_forward_failure(struct ddp_group *g, int culprit, struct ddp_err *err);
/* `culprit` cannot be reached, as `err` says: break the group, with the reported cause
 * if there is one. Returns -1. */
int group_rank_lost(struct ddp_group *g, int culprit, struct ddp_err *err);
/* The operation in progress, for an error text: "all_reduce #17". */
const char *group_current_call(const struct ddp_group *g, char *text, size_t size);

#endif
