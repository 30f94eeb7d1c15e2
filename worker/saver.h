/* worker/saver.h - checkpoints beside the training
 *
 * A checkpoint is copied, and a thread writes the copy while training goes on. There is
 * one at a time: before the next, and at the end, each rank waits for its own. How that
 * goes is the caller's to tell the others: between saver_part(), when a rank's own part
 * is on disk, and saver_end(), when rank 0 has made all parts one.
 */
#ifndef WORKER_SAVER_H
#define WORKER_SAVER_H

#include "worker/checkpoint.h"

struct saver;

struct saver *saver_create(const char *place);
/* Rank 0, before the training: -1 when another run saves there. */
int saver_claim(struct saver *s, struct ddp_err *err);
void saver_destroy(struct saver *s); /* NULL is fine; gives up on what is under way */

/* Before all ranks start: nothing of another run's is taken for ours. */
void saver_clear(struct saver *s, const struct checkpoint_info *info, struct model *model,
                 const struct optim *optim);
int saver_start(struct saver *s, const struct checkpoint_info *info, struct model *model,
                const struct optim *optim, struct ddp_err *err);

/* Wait for this rank's part: rank 0's, which waits for the others', is not waited for. */
int saver_part(struct saver *s, struct ddp_err *err);
void saver_cancel(struct saver *s); /* the others' will not come */
int saver_end(struct saver *s, struct ddp_err *err);

/* The newest that was written, and how long training stood still for it; NULL: none, or
 * it is another rank's. */
const char *saver_path(const struct saver *s);
double saver_stalled_s(const struct saver *s);

#endif
