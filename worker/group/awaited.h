/* worker/group/awaited.h - which ranks the operations in flight wait for */
#ifndef WORKER_GROUP_AWAITED_H
#define WORKER_GROUP_AWAITED_H

#include "worker/group/group.h"

/* The current collective, while it waits for ranks of this host; or NULL. */
const struct coll *awaited_coll(const struct ddp_group *g);

/* Do we wait for this rank of our host? True if another library moves the data: it may be
 * any. */
bool awaited_rank(const struct ddp_group *g, int local);

/* Do we wait for it only as a possible source of a receive from any? */
bool awaited_as_any_source(const struct ddp_group *g, int local);

/* The error of a wait that has lasted `seconds`: the ranks that have not entered the
 * collective, else those that data are expected from; `all` of them, or the first few.
 * Asks the ranks of other hosts. */
void awaited_explain(struct ddp_group *g, double seconds, bool all, struct ddp_err *err);

#endif
