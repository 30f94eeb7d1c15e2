/* worker/alike.h - what all ranks must have been asked for alike
 *
 * Ranks that disagree about these would wait for each other, or learn nonsense.
 */
#ifndef WORKER_ALIKE_H
#define WORKER_ALIKE_H

#include "include/ddprun/group.h"
#include "worker/config.h"
#include "worker/data/dataset.h"
#include "worker/nn/model.h"

/* Compares the options, and what they led to. -1 on every rank, with the same line, which
 * names the first difference, the lowest rank that has it, and both values. */
int alike_check(struct ddp_group *group, const struct train_config *c,
                const struct dataset *data, const struct model *model,
                struct ddp_err *err);

#endif
