/* worker/data/memory.h - is there room for what must be held in memory as a whole?
 *
 * Linux promises memory that it does not have and ends the process that uses it, without
 * a word from us. So large things are asked about first.
 */
#ifndef WORKER_DATA_MEMORY_H
#define WORKER_DATA_MEMORY_H

#include "include/ddprun/err.h"

#include <stdint.h>

/* -1 when `bytes` for `name` are more than this process may still take: what the machine
 * has available, or less where a control group (a job's share of the node) sets a limit.
 * `cure` ends the line: what to do. */
int memory_fits(const char *name, uint64_t bytes, const char *cure, struct ddp_err *err);

#endif
