/* worker/ddp/saver.h - asynchronous checkpoints
 *
 * The state is copied, and a thread writes the copy while training continues. One
 * checkpoint is in flight at a time: before the next, and at the end, all ranks wait for
 * it and agree on its outcome. `culprit` as in replica.h.
 */
#ifndef WORKER_DDP_SAVER_H
#define WORKER_DDP_SAVER_H

#include "worker/ddp/checkpoint.h"

struct saver;

/* A checkpoint of more bytes than SAVER_SHARD_BYTES, or as the caller says, is written by
 * all ranks. Group and place are borrowed. */
#define SAVER_SHARD_BYTES ((size_t)1 << 30)
struct saver *saver_create(struct ddp_group *group, const char *place,
                           size_t shard_bytes);
void saver_destroy(struct saver *s); /* NULL is fine; cancels what is in flight */
/* Rank 0, before training: -1 when one cannot be written, or another run saves there. */
int saver_prepare(struct saver *s, struct ddp_err *err);

/* Every rank: wait for the checkpoint in flight. */
int saver_finish(struct saver *s, int *culprit, struct ddp_err *err);
/* Every rank, behind saver_finish(): begin one. Arguments: checkpoint_take(). */
int saver_start(struct saver *s, const struct replica *r, const struct train_state *at,
                const struct strv *extra, struct ddp_err *err);

/* Rank 0: the step of the newest checkpoint that is complete; 0: there is none yet. */
uint64_t saver_written(const struct saver *s);
/* The newest checkpoint, and how long training stood still for it; NULL: none, or
 * another rank's. */
const char *saver_path(const struct saver *s);
double saver_stalled_s(const struct saver *s);

#endif
