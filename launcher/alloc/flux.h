/* launcher/alloc/flux.h - the resources of a Flux job
 *
 * A batch script under Flux finds nothing in its environment but FLUX_URI; the rest has
 * to be asked for: by `flux resource R`, as it is the first process of an instance that
 * has the job's resources and no others, and in a task (`flux run ddprun`) by `flux job
 * info ID R`, as the instance there is the one that runs the job, with all of its nodes.
 * The answer is an "R" (RFC 20, version 1): JSON with the hosts' names
 * (execution.nodelist, in hostlist notation, in the order of broker ranks) and what each
 * rank has (execution.R_lite: idsets of ranks, cores, gpus).
 */
#ifndef LAUNCHER_ALLOC_FLUX_H
#define LAUNCHER_ALLOC_FLUX_H

#include "launcher/alloc/alloc.h"

/* The text of an R into nodes. */
int flux_parse(const char *text, size_t size, struct alloc *a, struct ddp_err *err);

#endif
