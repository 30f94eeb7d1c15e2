/* worker/data/memory.h - is there enough memory for a large allocation?
 *
 * Linux overcommits memory, and later kills the process that uses it, without a
 * message. So large allocations are checked first.
 */
#ifndef WORKER_DATA_MEMORY_H
#define WORKER_DATA_MEMORY_H

#include "include/ddprun/err.h"

/* Fails if `bytes` for `name` are more than this process may still use: what the
 * machine has available, or less if a control group (a job's share of the node) has a
 * limit. `cure` ends the error: what to do. */
int memory_fits(const char *name, double bytes, const char *cure, struct ddp_err *err);

#endif
