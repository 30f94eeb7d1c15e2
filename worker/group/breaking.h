/* worker/group/breaking.h - the first failure, and how all ranks come to name the same
 * one
 *
 * Who breaks closes its streams, and its neighbours then see a rank that has gone. So
 * the cause goes ahead of the closing, on every way it can take: into the memory of the
 * host first, where it costs nothing, then to other hosts. The rank that finds a cause
 * tells all of them (group_break() in group.h); one that was told passes it on to those
 * it has streams with, since the finder may have been killed in the middle of its round.
 */
#ifndef WORKER_GROUP_BREAKING_H
#define WORKER_GROUP_BREAKING_H

#include "worker/group/group.h"

/* Has another rank told what it found? Then whose fault it is (-1: nobody's), and why. */
bool group_told(struct ddp_group *g, int *culprit, struct ddp_err *theirs);
/* Its word comes before a rank closes, but may come another way and a little later. */
bool group_told_soon(struct ddp_group *g, int *culprit, struct ddp_err *theirs);
/* What was told is ours, too: -1. */
int group_pass_on(struct ddp_group *g, int culprit, struct ddp_err *err);
/* `culprit` is not to be reached, as `err` says: -1 with the cause that all name. */
int group_lost(struct ddp_group *g, int culprit, struct ddp_err *err);
/* What is going on, for the end of a sentence: "all_reduce #17". */
const char *group_doing(const struct ddp_group *g, char *text, size_t size);

#endif
