/* worker/ddp/checkpoint.h - a training run on disk: stop here, go on there
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
#ifndef WORKER_DDP_CHECKPOINT_H
#define WORKER_DDP_CHECKPOINT_H

#include "common/strv.h"
#include "include/ddprun/err.h"
#include "worker/ddp/lock.h"
#include "worker/ddp/replica.h"

#include <stdatomic.h>
#include <stdbool.h>

/* This rank's part of a checkpoint, copied: training may go on. NULL: it has none. */
struct checkpoint;
/* Written by at->ranks ranks, in parts if it is larger than `shard_bytes`. The
 * optimiser's states are whole (optim_whole()). `extra` are "KEY=value" for the metadata,
 * or NULL. */
struct checkpoint *checkpoint_take(const char *place, const struct replica *r,
                                   const struct train_state *at, int rank,
                                   size_t shard_bytes, const struct strv *extra);
/* In how many: at least 1. */
int checkpoint_parts(const struct checkpoint *c);
/* Remove this rank's part of the same name, left by another run. To be called before any
 * rank writes a part: otherwise the checkpoint seems complete too early. */
void checkpoint_clear(const struct checkpoint *c);
/* Write it; of several, rank 0's waits for the others' until `*cancelled` (may be NULL),
 * and then writes the file that makes them one, which takes the place of the file that is
 * locked (`run_lock` may be NULL). `*path`, the caller's, is set on rank 0.
 * Needs nothing but `c`: any thread may do it. */
int checkpoint_write(struct checkpoint *c, const atomic_bool *cancelled,
                     struct lock *run_lock, char **path, struct ddp_err *err);
void checkpoint_free(struct checkpoint *c);

/* Fills the weights, the optimiser's whole states and `state`; on failure none of them
 * has changed. `*whole` is false when the file had weights only. In a folder, a
 * checkpoint with lost or damaged files is passed over for the one before: `passed_over`
 * says what is wrong with the newest, or is "". */
int checkpoint_load(const char *place, const struct replica *r, struct train_state *state,
                    bool *whole, struct ddp_err *passed_over, struct ddp_err *err);

/* Can one be written there? Makes the folder of a name that ends in "/". */
int checkpoint_prepare(const char *place, struct ddp_err *err);

/* Is there anything to resume from at `place`? */
bool checkpoint_exists(const char *place);

#endif
