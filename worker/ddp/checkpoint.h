/* worker/ddp/checkpoint.h - the state of a training run on disk
 *
 * Large checkpoints are written by all ranks, an even part of the arrays each:
 * FILE.STEP-ID.I-of-N; FILE itself, which is written last, then has only the metadata.
 * A random ID keeps the parts of two checkpoints of the same step apart. Any number of
 * ranks can resume.
 *
 * The format is safetensors. The parameters have PyTorch's names; the optimiser's
 * states are "optim.STATE.PARAMETER"; the progress of the run is in the metadata. A
 * file without the latter two (one that PyTorch wrote, say) gives the weights, and
 * training starts with step 0.
 *
 * `place` is a file, or a folder (one that exists, or a name that ends in "/"): a
 * folder collects step-NNNNNNNN.safetensors and is resumed from the highest number.
 */
#ifndef WORKER_DDP_CHECKPOINT_H
#define WORKER_DDP_CHECKPOINT_H

#include "common/strv.h"
#include "include/ddprun/err.h"
#include "worker/ddp/replica.h"

#include <stdatomic.h>
#include <stdbool.h>

/* A copy of this rank's part of a checkpoint, so that training can continue. NULL:
 * this rank writes nothing. */
struct checkpoint;
/* Copies for a checkpoint by at->ranks ranks, in parts if it is larger than
 * `shard_bytes`; `id` is the same on all ranks, and no other checkpoint's. The
 * optimiser's states must be whole (optim_whole()). `extra` are "KEY=value" for the
 * metadata, or NULL. */
struct checkpoint *checkpoint_take(const char *place, const struct replica *r,
                                   const struct train_state *at, int rank,
                                   size_t shard_bytes, uint64_t id,
                                   const struct strv *extra);
/* Removes this rank's part, unless the main file was written and needs it. All ranks call
 * it if one of them could not write, as the disk may be full. `c` may be NULL. */
void checkpoint_discard(const struct checkpoint *c);
/* Writes the part. With several parts, rank 0 then waits for the others' until
 * `*cancelled` (NULL: not at all), and writes the main file, in place of the locked file
 * (`lock` of checkpoint_lock(), may be NULL). `*path`, owned by the caller, is replaced
 * on rank 0. Uses only `c`, so any thread may call it. */
int checkpoint_write(struct checkpoint *c, const atomic_bool *cancelled, int *lock,
                     char **path, struct ddp_err *err);
void checkpoint_free(struct checkpoint *c);

/* Reads the weights, buffers, the optimiser's whole states and `state`, whose epoch, if
 * above 0, requires the file to have epoch, position and seed; after a failure all are
 * unchanged. `*whole` false: weights and buffers alone; it is false afterwards, too, if
 * the file had no more. In a folder, a checkpoint
 * with missing or damaged files is skipped for the one before: `passed_over` then says
 * what is wrong with the newest, else it is "". */
int checkpoint_load(const char *place, const struct replica *r, struct train_state *state,
                    bool *whole, struct ddp_err *passed_over, struct ddp_err *err);

/* Can a checkpoint be written there? Creates the folder for a name that ends in "/". */
int checkpoint_prepare(const char *place, struct ddp_err *err);

/* Two runs that save to one place would overwrite each other's checkpoints. So a run
 * holds a lock (flock) on the folder, or on the file that it has written or resumes from:
 * `*lock` is its descriptor, owned, -1: nothing to lock yet. Called before a file is
 * replaced, and afterwards: locks what is at `place` now, and releases what was locked.
 * The kernel does that however the process ends. Where the file system has no locks, no
 * run is refused. -1 with `err`: another run holds it. */
int checkpoint_lock(const char *place, int *lock, struct ddp_err *err);
void checkpoint_unlock(int *lock);

/* Is there anything to resume from at `place`? */
bool checkpoint_exists(const char *place);

#endif
