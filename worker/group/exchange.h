/* worker/group/exchange.h - gather, scatter and all_to_all, made of messages
 *
 * Every block goes straight from its sender to its receiver, all pairs at once: over the
 * rings of a host, and over one stream per pair between hosts. No order of the ranks
 * could make them cheaper, and blocks of different sizes cost nothing.
 */
#ifndef WORKER_GROUP_EXCHANGE_H
#define WORKER_GROUP_EXCHANGE_H

#include "worker/group/group.h"

/* ADVANCE_* */
int exchange_advance(struct ddp_group *g, struct coll *c, struct ddp_err *err);

#endif
