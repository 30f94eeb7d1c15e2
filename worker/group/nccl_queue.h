/* worker/group/nccl_queue.h - what collectives (nccl.c) and messages (nccl_p2p.c) of the
 * backend "nccl" share: queues of operations, and events that say when these have ended
 */
#ifndef WORKER_GROUP_NCCL_QUEUE_H
#define WORKER_GROUP_NCCL_QUEUE_H

#include "worker/gpu/libnccl.h"
#include "worker/group/group.h"

/* A communicator, and the stream that its operations go through. */
struct nccl_queue {
    void *comm;
    cuda_stream stream;
};

/* A group's; its ->foreign. */
struct nccl {
    struct nccl_queue coll;        /* all collectives, in the order they are called */
    struct nccl_channel *channels; /* owned: nccl_p2p.c */
    cuda_event *events, *idle;     /* owned: all that were made, and those not in use */
    size_t nevents, nidle;
    struct nccl *next; /* among the abandoned: nccl.c */
};

/* Record an event for `r` behind what the stream has been given. */
int nccl_mark(struct nccl *n, struct ddp_request *r, cuda_stream s, struct ddp_err *err);
/* 1: the event of `r` has passed, and is free for others; 0: not yet; -1: it failed, or
 * the communicator did (NULL: none is used). */
int nccl_passed(struct nccl *n, struct ddp_request *r, void *comm, struct ddp_err *err);

#endif
