/* worker/group/nccl_impl.h - collectives (nccl.c) and messages (nccl_p2p.c) of CUDA
 * memory
 */
#ifndef WORKER_GROUP_NCCL_IMPL_H
#define WORKER_GROUP_NCCL_IMPL_H

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

/* Messages, as in struct backend. */
void nccl_p2p_post(struct ddp_group *g, struct ddp_request *r);
int nccl_p2p_progress(struct ddp_group *g, struct ddp_err *err);
bool nccl_p2p_cancel(struct ddp_group *g, struct ddp_request *r);
void nccl_p2p_watch(struct ddp_group *g);
/* Close all channels; false: one of them still waited at `deadline_ms`, and what it uses
 * is left as it is. */
bool nccl_p2p_close(struct nccl *n, bool abort, int64_t deadline_ms);

#endif
