/* worker/cuda/comm.h - reductions over the ranks' devices, by NCCL, if there are
 * several ranks
 *
 * The library is loaded when needed (gpu/libnccl.h), 2.18 or newer, so that one GPU
 * needs none. The ranks join through the job's group (group/nccl_join.h), which also
 * reports a rank that has died, where NCCL itself would wait.
 *
 * A rank with stages on two devices has a lane for each: reductions are between
 * devices of the same lane.
 *
 * Collectives are launched on a stream and counted; a failure (failure.h) names the
 * collective, the rank and NCCL's message. Owner: the engine; the group is borrowed.
 */
#ifndef WORKER_CUDA_COMM_H
#define WORKER_CUDA_COMM_H

#include "include/ddprun/group.h"
#include "worker/cuda/failure.h"
#include "worker/ddp/bucket.h"

#include <stddef.h>
#include <stdint.h>

struct comm;

enum { COMM_LANES = 2 };

/* Every rank of the group calls it, with equally many devices, all different. rc < 0:
 * this rank cannot take part, with its reason in `err`; then the call fails on all
 * ranks, with that reason. */
struct comm *comm_create(struct ddp_group *group, const int *devices, int lanes, int rc,
                         struct ddp_err *err);
/* Aborts what is in flight on the devices, within moments: nothing can be launched or
 * waited for afterwards. Free graphs with collectives after this call. */
void comm_give_up(struct comm *c);
/* Destroys the communicators, or aborts them after an error or with collectives
 * `under_way` that have not been waited for and may never end. Free graphs with
 * collectives before: NCCL waits for that. False: NCCL does not end, and may still use
 * the devices. */
bool comm_destroy(struct comm *c, bool under_way);

/* Sums, in place, on a stream of the lane's device. */
void comm_all_reduce(struct comm *c, int lane, void *data, size_t count,
                     enum ddp_type type, cudaStream_t stream);
/* data[size * each]: rank r gets the sum of its r-th part. */
void comm_reduce_scatter(struct comm *c, int lane, float *data, size_t each,
                         cudaStream_t stream);
/* Gathers the ranks' even parts of each bucket of a block, whose first number is the
 * buckets' number `first`; what is left over all ranks have. */
void comm_gather_buckets(struct comm *c, int lane, float *block, size_t first,
                         const struct bucket *buckets, size_t n, cudaStream_t stream);
/* Copies rank 0's data to all. */
void comm_broadcast(struct comm *c, int lane, float *data, size_t count,
                    cudaStream_t stream);
/* Collectives between these calls are one operation of NCCL. */
void comm_begin(struct comm *c);
void comm_end(struct comm *c);

/* Waits for `event`, at most `timeout_ms`; a rank that dies or an error of NCCL ends
 * the wait, and then the communicator cannot be used any more. `c` NULL: only the device
 * is waited for. */
void comm_await(struct comm *c, cudaEvent_t event, int64_t timeout_ms);

#endif
