/* worker/checkpoint.h - a training run on disk: stop here, go on there
 *
 * A large one is written by all ranks, an even part of its arrays each: FILE.STEP.I-of-N,
 * and FILE itself, which is written last, has the metadata only. It can be resumed by any
 * number of ranks.
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
#include "worker/lock.h"
#include "worker/nn/model.h"
#include "worker/optim/optim.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* A longer choice is not kept: a run that goes on makes its own. */
enum { TRAIN_ALGORITHMS = 65536 };

/* The progress of a run. */
struct train_state {
    uint64_t step;      /* optimiser steps taken */
    uint64_t seed;      /* of the run */
    int64_t epoch;      /* the one under way, from 1 */
    uint64_t position;  /* samples of it that have been dealt, over all ranks */
    int64_t ranks;      /* who wrote a checkpoint; 0: it is not known */
    char buckets[1024]; /* in which so many ranks add their gradients; "": not settled */
    char algorithms[TRAIN_ALGORITHMS]; /* that a GPU's engine has chosen; "": the usual */
};

/* What goes into one beside model and optimiser. */
struct checkpoint_info {
    struct train_state state;
    const struct dataset *data; /* borrowed, for a moment */
    int rank, ranks, batch_size;
    size_t shard_bytes; /* a larger one is written in parts */
};

/* This rank's part of a checkpoint, copied: training may go on. NULL: it has none. */
struct checkpoint;
struct checkpoint *checkpoint_take(const char *place, const struct checkpoint_info *info,
                                   struct model *model, const struct optim *optim);
/* In how many parts: 1 or info->ranks. */
int checkpoint_parts(const struct checkpoint_info *info, struct model *model,
                     const struct optim *optim);
/* Remove this rank's part of the same name, left by another run. To be called before any
 * rank writes a part: otherwise the checkpoint seems complete too early. */
void checkpoint_clear(const char *place, const struct checkpoint_info *info, int parts);
/* Write it; of several, rank 0's waits for the others' until `*cancelled` (may be NULL),
 * and then writes the file that makes them one, which takes the place of the file that is
 * locked (`run_lock` may be NULL). `*path`, the caller's, is set on rank 0.
 * Needs nothing but `c`: any thread may do it. */
int checkpoint_write(struct checkpoint *c, const atomic_bool *cancelled,
                     struct lock *run_lock, char **path, struct ddp_err *err);
void checkpoint_free(struct checkpoint *c);

/* Fills the weights, the optimiser and `state`; on failure none of them has changed.
 * `*whole` is false when the file had weights only. In a folder, a checkpoint with lost
 * or damaged files is passed over for the one before: `passed_over` says what is wrong
 * with the newest, or is "". */
int checkpoint_load(const char *place, struct train_state *state, struct model *model,
                    struct optim *optim, bool *whole, struct ddp_err *passed_over,
                    struct ddp_err *err);

/* Can one be written there? Makes the folder of a name that ends in "/". */
int checkpoint_prepare(const char *place, struct ddp_err *err);

/* Is there anything to resume from at `place`? */
bool checkpoint_exists(const char *place);

#endif
