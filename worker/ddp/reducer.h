/* worker/ddp/reducer.h - one sum of all ranks' gradients per step, made during backward
 *
 * Gradients lie in the group's arena. Each rank weights its own by its share of the
 * step's samples (the `scale` of model_train_step), so that their sum is the gradient of
 * the mean loss over all samples, also where ranks have different numbers of them, or
 * none.
 *
 * A few numbers about the step are sent with the gradients at no extra cost: after
 * reducer_finish() each rank has the loss over all ranks, and whether a rank wants to
 * stop.
 *
 * With `shard`, each rank gets the sums of its own pieces only, a part of every bucket:
 * it updates their weights, and reducer_gather() gives all ranks the others'. Both ways
 * carry as many bytes as an all-reduce.
 *
 * Ranks that all share one host's memory need no buckets, since nothing could travel
 * while their CPUs go back: reducer_finish() only meets the others, and then each rank
 * sums its piece, reading theirs where they lie, as it updates it: in blocks that stay in
 * the cache, and whose weights it writes to where the others have theirs (shard.h).
 * Linear layers have no gradients to be summed then, but factors (factors.h).
 *
 * Owner: the trainer. The group is borrowed and must outlive it.
 */
#ifndef WORKER_DDP_REDUCER_H
#define WORKER_DDP_REDUCER_H

#include "include/ddprun/group.h"
#include "worker/ddp/bucket.h"
#include "worker/ddp/sums.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct reducer_settings {
    size_t first_bytes, cap_bytes; /* of buckets */
    bool overlap;                  /* false: all of it after backward */
    bool timed;                    /* settle on buckets by time, after a few steps */
    bool shard;
    bool direct;  /* ranks that share memory need no buckets, and do as with `shard`; */
    bool factors; /* with one batch to a step, factors instead of gradients */
};

struct reducer;

/* From now on the model's gradients lie in the arena, and its weights where other ranks
 * write to them. */
struct reducer *reducer_create(struct ddp_group *group, struct model *model,
                               struct reducer_settings settings, struct ddp_err *err);
/* For parameters that are no model's, one after the other: without factors. */
struct reducer *reducer_create_for(struct ddp_group *group, const struct param *params,
                                   size_t n, struct reducer_settings settings,
                                   struct ddp_err *err);
void reducer_destroy(struct reducer *r); /* NULL is fine; not with a step under way */

/* 0: the ranks share memory, and need none. */
size_t reducer_buckets(const struct reducer *r);
/* Are states and weights of a rank those of its pieces? */
bool reducer_shares(const struct reducer *r);
/* The plan, as "OFFSET,OFFSET,...", once it is settled, else ""; and another one, from
 * such a text, in place of one that would be made by time: a run that goes on adds in the
 * order it did before. -1: the text is of another model. */
void reducer_plan_text(const struct reducer *r, char *text, size_t size);
int reducer_use_plan(struct reducer *r, const char *text);
/* The block of this rank's gradients. */
float *reducer_grads(struct reducer *r);

/* Called with the time in which each bucket was in flight, in now_ns(). Where ranks share
 * memory: in which this one waited, as bucket 0 for the others' gradients, as bucket 1
 * for the weights they give. */
typedef void (*reducer_span_fn)(size_t bucket, size_t bytes, int64_t begin_ns,
                                int64_t end_ns, void *arg);
void reducer_observe(struct reducer *r, reducer_span_fn span, void *arg);

/* Before a step. An `idle` rank has no samples in it: its gradients are set to zero here
 * instead of by backward. */
int reducer_begin(struct reducer *r, bool idle, struct ddp_err *err);
/* The callback of model_train_step(); `reducer` is a struct reducer. An error shows at
 * reducer_finish(). */
void reducer_ready(size_t offset, size_t count, void *reducer);
/* Waits for everything; `sums` holds this rank's numbers, then those of all. */
int reducer_finish(struct reducer *r, struct step_sums *sums, struct ddp_err *err);

/* The ranges whose sums this rank has to itself, which together with the other ranks' are
 * the block; where ranks do not share, an even part of it. Borrowed until the next
 * reducer_begin(). */
const struct bucket *reducer_pieces(const struct reducer *r, size_t *n);
/* With `shard`: gather the pieces of all ranks into `block`, which has the layout of the
 * gradients. */
int reducer_gather(struct reducer *r, float *block, struct ddp_err *err);

/* ---- where ranks share memory ---- */

bool reducer_direct(const struct reducer *r);
/* The sums of gradients [at, at + n) of piece i, after reducer_finish(): made now, by
 * `k`, unless reducer_sum_all() has been there, and good until the same thread asks
 * again. By any of the engines' threads, which passes its number, in blocks of at most
 * reducer_block() that begin at multiples of it. */
const float *reducer_sum(struct reducer *r, const struct kernels *k, int thread, size_t i,
                         size_t at, size_t n);
size_t reducer_block(const struct reducer *r, size_t i);
/* This rank's pieces, whole: for a caller that needs all sums first. */
void reducer_sum_all(struct reducer *r, const struct kernels *k);
/* Block [at, at + n) of `block`, which lies in the arena as the gradients do, becomes
 * that of all other ranks: */
void reducer_give(struct reducer *r, const float *block, size_t at, size_t n);
/* once all have met, to be called when a rank has given all. */
int reducer_given(struct reducer *r, struct ddp_err *err);

/* All of this step's sums that this rank has, after reducer_sum_all(), times `by`; and
 * the norm of all ranks'. */
void reducer_scale(struct reducer *r, const struct kernels *k, float by);
int reducer_norm(struct reducer *r, const struct kernels *k, double *norm,
                 struct ddp_err *err);

/* Where this step's sums of piece i all lie, after reducer_sum_all() where ranks share
 * memory. */
float *reducer_sums(const struct reducer *r, size_t i);

#endif
