/* worker/cuda/comm.h - sums over the ranks' devices: NCCL, when there is more than one
 *
 * The library is opened when it is needed (gpu/libnccl.h), 2.18 or newer, so that one
 * GPU needs none. The ranks join through the job's group (group/nccl_join.h), which also
 * reports when one has died: NCCL itself would wait for it.
 *
 * A rank with stages on two devices has a lane for each: ranks sum up between devices of
 * the same lane.
 *
 * Collectives are put on a stream and counted; an error names the collective, the rank
 * and what NCCL said. Owner: the engine; the group is borrowed.
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

/* Every rank of the group calls it, with as many devices, no two the same; rc < 0 is a
 * rank that cannot, with its reason in `err`: then it fails for all, with that reason. */
struct comm *comm_create(struct ddp_group *group, const int *devices, int lanes, int rc,
                         struct ddp_err *err);
/* What is under way on the devices is to end, and does so within moments: nothing can be
 * put or waited for any more. Graphs with collectives in them are to go now. */
void comm_give_up(struct comm *c);
/* In order when all is well. After an error, or with sums `under_way` that have not been
 * waited for and may never end, those are given up. Graphs with collectives in them
 * go before: NCCL waits for that. False: NCCL does not come to an end, and may still be
 * at work on the devices. */
bool comm_destroy(struct comm *c, bool under_way);

/* "NCCL 2.28.9" */
const char *comm_version(void);

/* All in place, floats, sums; on a stream of the lane's device. */
int comm_all_reduce(struct comm *c, int lane, float *data, size_t count,
                    cudaStream_t stream, struct ddp_err *err);
int comm_all_reduce_f64(struct comm *c, int lane, double *data, size_t count,
                        cudaStream_t stream, struct ddp_err *err);
/* data[size * each]: rank r has the sum of its r-th part; and all have all parts. */
int comm_reduce_scatter(struct comm *c, int lane, float *data, size_t each,
                        cudaStream_t stream, struct ddp_err *err);
int comm_all_gather(struct comm *c, int lane, float *data, size_t each,
                    cudaStream_t stream, struct ddp_err *err);
/* Those between them are one to NCCL. */
int comm_begin(struct comm *c, struct ddp_err *err);
int comm_end(struct comm *c, struct ddp_err *err);

/* Wait for `event`, at most `timeout_ms`; a rank that dies or an error of NCCL ends it,
 * and then nothing of this communicator can be waited for any more. `what`, for
 * the line: "the gradients of step 17". `c` NULL: only the device is waited for. */
int comm_await(struct comm *c, cudaEvent_t event, int64_t timeout_ms, const char *what,
               struct ddp_err *err);

#endif
