/* tests/worker/calls.h - calls that differ, for tests of ranks that disagree
 *
 * The includer has the buffers `a` and `b`, of LONG floats for each rank, and ODD, a rank
 * that is not the first.
 */
#ifndef TESTS_WORKER_CALLS_H
#define TESTS_WORKER_CALLS_H

#include "tests/worker/team.h"

TEAM_CALL(barrier, ddp_barrier(g, err))
TEAM_CALL(broadcast, ddp_broadcast(g, a, 64, DDP_F32, 0, err))
TEAM_CALL(broadcast_of_odd, ddp_broadcast(g, a, 64, DDP_F32, ODD, err))
TEAM_CALL(all_reduce, ddp_all_reduce(g, a, 64, DDP_F32, DDP_MAX, err))
TEAM_CALL(all_reduce_min, ddp_all_reduce(g, a, 64, DDP_F32, DDP_MIN, err))
TEAM_CALL(all_reduce_long, ddp_all_reduce(g, a, LONG, DDP_F32, DDP_MAX, err))
TEAM_CALL(all_to_all, ddp_all_to_all(g, a, b, 64, DDP_F32, err))

#endif
