/* worker/checkpoint.h - a training run on disk: stop here, go on there
 *
 * A safetensors file. The parameters have PyTorch's names; what the optimiser remembers
 * is "optim.STATE.PARAMETER"; where the run stands is in the metadata. A file without the
 * latter two (one that PyTorch wrote, say) gives the weights, and training starts with
 * step 0 from them.
 *
 * `place` is a file, or a folder (one that exists, or a name that ends in "/"): a folder
 * collects step-NNNNNNNN.safetensors and is resumed from the highest number.
 */
#ifndef WORKER_CHECKPOINT_H
#define WORKER_CHECKPOINT_H

#include "include/ddprun/err.h"
#include "worker/data/dataset.h"
#include "worker/nn/model.h"
#include "worker/optim/optim.h"

#include <stdbool.h>
#include <stdint.h>

/* How far a run has come. */
struct train_state {
    uint64_t step;     /* optimiser steps taken */
    uint64_t seed;     /* of the run */
    int64_t epoch;     /* the one under way, from 1 */
    uint64_t position; /* samples of it that have been dealt, over all ranks */
};

/* `data`, `ranks` and `batch_size` are told to readers and not needed to go on. */
int checkpoint_save(const char *place, const struct train_state *state,
                    struct model *model, const struct optim *optim,
                    const struct dataset *data, int ranks, int batch_size, char **path,
                    struct ddp_err *err);

/* Fills the weights, the optimiser and `state`; on failure none of them has changed.
 * `*whole` is false when the file had weights only. */
int checkpoint_load(const char *place, struct train_state *state, struct model *model,
                    struct optim *optim, bool *whole, struct ddp_err *err);

/* Can one be written there? Makes the folder of a name that ends in "/". */
int checkpoint_prepare(const char *place, struct ddp_err *err);

/* Is there anything to resume from at `place`? */
bool checkpoint_exists(const char *place);

#endif
