/* worker/saver.h - asynchronous checkpoints
 *
 * The state is copied, and a thread writes the copy while training continues. One
 * checkpoint is in flight at a time: before the next, and at the end, each rank waits
 * for its own. The caller tells the other ranks the outcome: between saver_part(), when
 * a rank's part is on disk, and saver_end(), when rank 0 has completed the whole.
 */
#ifndef WORKER_SAVER_H
#define WORKER_SAVER_H

#include "worker/checkpoint.h"

struct saver;

struct saver *saver_create(const char *place);
/* Rank 0, before training: -1 when another run saves there. */
int saver_lock(struct saver *s, struct ddp_err *err);
void saver_destroy(struct saver *s); /* NULL is fine; cancels what is in flight */

/* Before all ranks start: remove parts of earlier runs. */
void saver_clear(struct saver *s, const struct checkpoint_info *info, struct model *model,
                 const struct optim *optim);
int saver_start(struct saver *s, const struct checkpoint_info *info, struct model *model,
                const struct optim *optim, struct ddp_err *err);

/* Wait for this rank's part. Rank 0's thread, which waits for the other parts, is not
 * waited for. */
int saver_part(struct saver *s, struct ddp_err *err);
void saver_cancel(struct saver *s); /* the other ranks' parts will not come */
int saver_end(struct saver *s, struct ddp_err *err);

/* Rank 0: the step of the newest checkpoint that is complete; 0: there is none yet. */
uint64_t saver_written(const struct saver *s);
/* The newest checkpoint, and how long training stood still for it; NULL: none, or
 * another rank's. */
const char *saver_path(const struct saver *s);
double saver_stalled_s(const struct saver *s);

#endif
