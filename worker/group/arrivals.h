/* worker/group/arrivals.h - for --stragglers: when this rank has entered its collectives
 *
 * DDPRUN_ARRIVALS in the environment switches it on: 40 ns per collective, into a file
 * (common/arrivals.h). Otherwise it costs a test of a pointer.
 */
#ifndef WORKER_GROUP_ARRIVALS_H
#define WORKER_GROUP_ARRIVALS_H

#include "worker/group/group.h"

void arrivals_open(struct ddp_group *g);       /* once per group, when it is complete */
void arrivals_note(const struct ddp_group *g); /* it enters number g->number */

#endif
