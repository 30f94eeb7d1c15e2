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
 * Collectives are launched on a stream and counted; an error names the collective, the
 * rank and NCCL's message. Owner: the engine; the group is borrowed.
 */
#ifndef WORKER_CUDA_COMM_H
#define WORKER_CUDA_COMM_H

#include "include/ddprun/group.h"
#include "worker/cuda/cuda_error.h"

#include <cuda_runtime_api.h>
#include <stdbool.h>
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

/* "NCCL 2.28.9" */
const char *comm_version(void);

/* Sums, in place, on a stream of the lane's device. */
int comm_all_reduce(struct comm *c, int lane, void *data, size_t count,
                    enum ddp_type type, cudaStream_t stream, struct ddp_err *err);
/* data[size * each]: rank r gets the sum of its r-th part; the other gathers all
 * parts. */
int comm_reduce_scatter(struct comm *c, int lane, float *data, size_t each,
                        cudaStream_t stream, struct ddp_err *err);
int comm_all_gather(struct comm *c, int lane, float *data, size_t each,
                    cudaStream_t stream, struct ddp_err *err);
/* Copies rank 0's data to all. */
int comm_broadcast(struct comm *c, int lane, float *data, size_t count,
                   cudaStream_t stream, struct ddp_err *err);
/* Collectives between these calls are one operation of NCCL. */
int comm_begin(struct comm *c, struct ddp_err *err);
int comm_end(struct comm *c, struct ddp_err *err);

/* Waits for `event`, at most `timeout_ms`; a rank that dies or an error of NCCL ends
 * the wait, and then the communicator cannot be used any more. `what`, for the error:
 * "the gradients of step 17". `c` NULL: only the device is waited for. */
int comm_await(struct comm *c, cudaEvent_t event, int64_t timeout_ms, const char *what,
               struct ddp_err *err);

#endif
