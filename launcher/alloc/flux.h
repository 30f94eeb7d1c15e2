/* launcher/alloc/flux.h - the resources of a Flux job
 *
 * A batch script under Flux gets only FLUX_URI in its environment; the resources must be
 * queried. The script is the initial program of an instance with exactly the job's
 * resources: `flux resource R`. In a task (`flux run ddprun`) the instance is the one
 * that runs the job, with all of its nodes: `flux job info ID R`. The reply is an "R"
 * (RFC 20, version 1): JSON with the host names (execution.nodelist, in hostlist
 * notation, in the order of broker ranks) and each rank's resources (execution.R_lite:
 * idsets of ranks, cores, gpus).
 */
#ifndef LAUNCHER_ALLOC_FLUX_H
#define LAUNCHER_ALLOC_FLUX_H

#include "launcher/alloc/alloc.h"

/* Parse an R and append its nodes. */
int flux_parse(const char *text, size_t size, struct alloc *a, struct ddp_err *err);

#endif
