/* worker/ddp/replica.h - many ranks, one model: start alike, fail together, stay alike
 */
#ifndef WORKER_DDP_REPLICA_H
#define WORKER_DDP_REPLICA_H

#include "include/ddprun/group.h"
#include "worker/nn/model.h"
#include "worker/optim/optim.h"

#include <stdint.h>

/* Agree on the outcome of all ranks. `rc` and `err` are this rank's outcome.
 * Returns 0 when all succeeded. Else -1 on every rank, with the error of the lowest rank
 * that failed, and `*culprit` (may be NULL) is that rank; -1 when none did, or when the
 * group itself failed. */
int replica_agree(struct ddp_group *group, int rc, int *culprit, struct ddp_err *err);

/* Rank 0's weights, buffers and optimiser state are copied to all. */
int replica_broadcast(struct ddp_group *group, struct model *model, struct optim *optim,
                      struct ddp_err *err);

/* The optimiser's alone: whole states, and counts. */
int replica_broadcast_optim(struct ddp_group *group, struct optim *optim,
                            struct ddp_err *err);

/* The buffers of each rank (means and variances of what it saw) become the mean of all
 * ranks': before they are used, or written. */
int replica_average(struct ddp_group *group, struct model *model, struct ddp_err *err);

/* Do all ranks have the same bits? Compares a checksum of each parameter; the error names
 * the first parameter and rank that differ from rank 0. `*sum` is that of the whole. */
int replica_check(struct ddp_group *group, struct model *model, uint64_t *sum,
                  struct ddp_err *err);
/* The same of a block that is no model's. */
int replica_check_block(struct ddp_group *group, const float *weights,
                        const struct param *params, size_t n, uint64_t *sum,
                        struct ddp_err *err);

#endif
