/* launcher/cli/dryrun.h - --dry-run: everything up to the point where something would
 * start
 */
#ifndef LAUNCHER_CLI_DRYRUN_H
#define LAUNCHER_CLI_DRYRUN_H

#include "launcher/alloc/alloc.h"
#include "launcher/opts.h"

/* Prints hosts, ranks, environment and commands to stdout. `alloc` gets its open slots
 * settled as far as that goes without asking anybody. Fails as the launch would. */
int dryrun(const struct opts *opts, struct alloc *alloc, struct ddp_err *err);

#endif
