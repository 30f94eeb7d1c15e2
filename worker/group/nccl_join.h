/* worker/group/nccl_join.h - ranks make a communicator of NCCL
 *
 * For the backend "nccl" and for the engine for GPUs (worker/cuda/comm.c).
 */
#ifndef WORKER_GROUP_NCCL_JOIN_H
#define WORKER_GROUP_NCCL_JOIN_H

#include "worker/gpu/libnccl.h"

/* ncclCommInitRank(), which waits for the others and knows no deadline: for a thread of
 * its own (common/offload.h). */
struct nccl_init {
    void (*enter)(void *device); /* makes the thread work on the device */
    void *device;
    struct nccl_id id;
    int size, rank, rc;
    void *comm;
};
void nccl_call_init(void *init);

/* All ranks of the group make a communicator of their devices: rank 0's id is given to
 * the others through the group. -1: NCCL failed on one of them, one has died, or they
 * have not met by the group's deadline; the group is broken then, and each rank has the
 * same reason. */
int nccl_join(struct ddp_group *g, void (*enter)(void *device), void *device, void **comm,
              struct ddp_err *err);

#endif
