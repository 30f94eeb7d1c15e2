/* worker/config_agreement.h - options that must be the same on all ranks
 *
 * Ranks that differ in them would deadlock, or train wrongly.
 */
#ifndef WORKER_CONFIG_AGREEMENT_H
#define WORKER_CONFIG_AGREEMENT_H

#include "include/ddprun/group.h"
#include "worker/config.h"
#include "worker/data/dataset.h"
#include "worker/nn/model.h"

/* Compares options and what follows from them. -1 on every rank with the same text,
 * which names the first difference, the lowest rank that has it, and both values. */
int config_agreement_check(struct ddp_group *group, const struct train_config *c,
                           const struct dataset *data, const struct model *model,
                           struct ddp_err *err);

#endif
