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

/* A checkpoint of more than SAVER_SHARD_BYTES bytes, or of the caller's limit, is
 * written by all ranks. The group is borrowed. */
#define SAVER_SHARD_BYTES ((size_t)1 << 30)
struct saver *saver_create(struct ddp_group *group, const char *place,
                           size_t shard_bytes);
void saver_destroy(struct saver *s); /* NULL is allowed; cancels what is in flight */
/* On rank 0, before training: -1 if no checkpoint can be written, or another run uses
 * the place. `on_slow` (NULL: none) is called once a minute while all ranks wait for
 * `rank` to write. */
typedef void (*saver_slow_fn)(void *arg, int rank, double seconds);
int saver_prepare(struct saver *s, saver_slow_fn on_slow, void *arg, struct ddp_err *err);

/* Every rank: waits for the checkpoint in flight, for 12 timeouts of the group at most,
 * as a slow file system is no failure. */
int saver_finish(struct saver *s, int *culprit, struct ddp_err *err);
/* Every rank: the same, then starts one. For the arguments see checkpoint_take(). */
int saver_start(struct saver *s, const struct replica *r, const struct train_state *at,
                const struct strv *extra, int *culprit, struct ddp_err *err);

/* On rank 0: the step of the newest complete checkpoint; 0: none yet. */
uint64_t saver_written(const struct saver *s);
/* The newest checkpoint, and the time that training waited for it; NULL: none, or
 * another rank's. */
const char *saver_path(const struct saver *s);
double saver_stalled_s(const struct saver *s);

#endif
