/* worker/group/nccl_p2p.h - messages of CUDA memory, by libnccl */
#ifndef WORKER_GROUP_NCCL_P2P_H
#define WORKER_GROUP_NCCL_P2P_H

#include "worker/group/nccl_queue.h"

/* As in struct backend. */
void nccl_p2p_post(struct ddp_group *g, struct ddp_request *r);
int nccl_p2p_progress(struct ddp_group *g, struct ddp_err *err);
bool nccl_p2p_cancel(struct ddp_group *g, struct ddp_request *r);
void nccl_p2p_watch(struct ddp_group *g);
/* Close all channels; false: one of them still waited at `deadline_ms`, and what it uses
 * is left as it is. */
bool nccl_p2p_close(struct nccl *n, bool abort, int64_t deadline_ms);

#endif
