/* worker/group/p2p.h - point-to-point messages
 *
 * Each pair of ranks has one stream per direction (a ring in shared memory, or a
 * connection). Messages are sent whole and in order. A message that arrives before a
 * receive with its tag is posted is buffered as unexpected.
 */
#ifndef WORKER_GROUP_P2P_H
#define WORKER_GROUP_P2P_H

#include "worker/group/group.h"

/* Start a request; it ends when its buffer may be reused, or is filled. */
void p2p_post(struct ddp_group *g, struct ddp_request *r);

/* Cancel a request of which nothing has been sent or received: true if it was. */
bool p2p_cancel(struct ddp_group *g, struct ddp_request *r);
/* Tell other hosts that the group ends without an error. */
void p2p_announce_leave(struct ddp_group *g);

/* 0, or -1 with `*culprit`, the rank to blame or -1. */
int p2p_progress(struct ddp_group *g, int *culprit, struct ddp_err *err);

/* Can progress be made with a rank of this host: data to read, or room to write? */
bool p2p_ready(const struct ddp_group *g);
/* Is data expected from this rank, or unsent to it? Perhaps: by a receive from any. */
enum awaited p2p_awaits(const struct ddp_group *g, int rank);
bool p2p_awaits_host(const struct ddp_group *g); /* any other rank of this host */
/* The rank has left without an error: receives from any source no longer wait for it. */
void p2p_left(struct ddp_group *g, int rank);

#endif
