/* worker/group/alltoall.h - gather, scatter and all_to_all by point-to-point messages
 *
 * Every block is sent directly to its receiver, all pairs at once: through shared
 * memory within a host, over one stream per pair between hosts. Blocks of different
 * sizes cost nothing extra.
 */
#ifndef WORKER_GROUP_ALLTOALL_H
#define WORKER_GROUP_ALLTOALL_H

#include "worker/group/group.h"

/* ADVANCE_* */
int alltoall_advance(struct ddp_group *g, struct coll *c, struct ddp_err *err);

#endif
