/* worker/ddp/parallel_check.h - what ranks give to ddp_parallel_create(): can it be used,
 * and is it the same on all ranks?
 */
#ifndef WORKER_DDP_PARALLEL_CHECK_H
#define WORKER_DDP_PARALLEL_CHECK_H

#include "include/ddprun/ddp.h"

/* Refuses what this rank has, alone: sizes, parameters that share weights, options. */
int parallel_check(const struct ddp_param *params, size_t n,
                   const struct ddp_parallel_options *o, struct ddp_err *err);
/* Names identify arrays in a file, whose arrays have a limit, too. */
int parallel_check_names(const struct ddp_param *params, size_t n, struct ddp_err *err);
/* All ranks call it: an error on all if a rank's parameters or options differ, which
 * would add what does not belong together, in places of equal sizes without an error. */
int parallel_agree(struct ddp_group *g, const struct ddp_param *params, size_t n,
                   const struct ddp_parallel_options *o, struct ddp_err *err);
/* What one rank alone finds wrong, with `rc` -1, is an error on all, which names it: none
 * waits for it. */
int parallel_refuse(struct ddp_group *g, int rc, struct ddp_err *err);

#endif
