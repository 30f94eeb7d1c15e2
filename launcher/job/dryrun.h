/* launcher/job/dryrun.h - --dry-run: print the plan, start nothing */
#ifndef LAUNCHER_JOB_DRYRUN_H
#define LAUNCHER_JOB_DRYRUN_H

#include "launcher/alloc/alloc.h"
#include "launcher/opts.h"

/* Prints hosts, ranks, environment and commands to stdout. Sets unknown slots in `alloc`:
 * this machine's by its GPUs, others' by an assumption. Fails as the launch would. */
int dryrun(const struct opts *opts, struct alloc *alloc, struct ddp_err *err);

#endif
