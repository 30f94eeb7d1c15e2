/* worker/ddp/reducer.h - the sum of all ranks' gradients, reduced during backward
 *
 * Gradients are in the group's arena. Each rank weights its own by its share of the
 * step's samples (the `scale` of struct model_pass), so that their sum is the gradient
 * of the mean loss over all samples, also where ranks have different numbers of
 * samples, or none.
 *
 * A few numbers about the step are sent along at no extra cost: after reducer_finish()
 * each rank has the loss over all ranks, and whether a rank wants to stop.
 *
 * With `shard`, each rank gets the sums of its own pieces only, a part of every
 * bucket: it updates their weights, and reducer_gather() gives all ranks the others'.
 * The two transfer as many bytes as an all-reduce.
 *
 * Ranks that all share one host's memory need no buckets, since no transfer can
 * overlap while their CPUs compute backward. reducer_finish() then only sums the step's
 * numbers, which is also a barrier; each rank sums its piece from the others' arenas when
 * it updates it, in blocks that stay in the cache, and writes the new weights to the
 * others (shard.h). Linear layers then have factors in place of gradients (factors.h).
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
    bool overlap;                  /* false: all reductions after backward */
    bool timed;                    /* plan buckets by time, after a few steps */
    bool shard;
    bool direct; /* ranks that share memory use no buckets, and work as with `shard` */
    struct model *factors; /* then its linear layers, with one batch per step, have
                              factors in place of gradients; NULL: none */
};

struct reducer;

/* From now on the model's gradients are in the arena, and its weights where other
 * ranks can write them. */
struct reducer *reducer_create(struct ddp_group *group, struct model *model,
                               struct reducer_settings settings, struct ddp_err *err);
/* For parameters that are not a model's, in their order in the block. */
struct reducer *reducer_create_for(struct ddp_group *group, const struct param *params,
                                   size_t n, struct reducer_settings settings,
                                   struct ddp_err *err);
void reducer_destroy(struct reducer *r); /* NULL is allowed; not during a step */

/* The number of buckets; 0: the ranks share memory. */
size_t reducer_buckets(const struct reducer *r);
/* Has this rank only the states of its pieces? */
bool reducer_shares(const struct reducer *r);
/* The plan as "OFFSET,OFFSET,...", once it is final, else ""; and a plan from such a
 * text, in place of one made by time: a resumed run then adds in the same order. -1:
 * the text is of another model. Without overlap there is one reduction, whatever the
 * plan. */
void reducer_plan_text(const struct reducer *r, char *text, size_t size);
int reducer_use_plan(struct reducer *r, const char *text);
/* The block of this rank's gradients. */
float *reducer_grads(struct reducer *r);

/* Sets a function that is called with the time in which each bucket was in flight, in
 * now_ns(). Where ranks share memory: the time this rank waited, as bucket 0 for the
 * others' gradients, as bucket 1 for the weights they write. */
typedef void (*reducer_span_fn)(size_t bucket, size_t bytes, int64_t begin_ns,
                                int64_t end_ns, void *arg);
void reducer_observe(struct reducer *r, reducer_span_fn span, void *arg);

/* Before a step. An `idle` rank has no samples in it: its gradients are set to zero
 * here, not by backward. */
int reducer_begin(struct reducer *r, bool idle, struct ddp_err *err);
/* The `ready` of struct model_pass; `reducer` is a struct reducer. Errors are
 * returned by reducer_finish(). */
void reducer_ready(size_t offset, size_t count, void *reducer);
/* Waits for all reductions; `sums` has this rank's numbers, then those of all. */
int reducer_finish(struct reducer *r, struct step_sums *sums, struct ddp_err *err);

/* The ranges whose sums only this rank has; with the other ranks' they are the block.
 * Without sharding, an even part of it. Borrowed until the next reducer_begin(). */
const struct bucket *reducer_pieces(const struct reducer *r, size_t *n);
/* Where piece i begins in an array of the pieces, one after the other, each aligned to a
 * cache line; with i their number, its end. */
size_t reducer_start(const struct reducer *r, size_t i);
/* With `shard`: gathers the pieces of all ranks into `block`, which has the layout of
 * the gradients. */
int reducer_gather(struct reducer *r, float *block, struct ddp_err *err);

/* ---- for ranks that share memory ---- */

bool reducer_direct(const struct reducer *r);
/* Calls `fn` for each block [at, at + n) of this rank's pieces, in the engines' threads:
 * `thread` is the number of the calling one. */
typedef void (*reducer_block_fn)(struct reducer *r, int thread, size_t i, size_t at,
                                 size_t n, void *arg);
void reducer_each_block(struct reducer *r, reducer_block_fn fn, void *arg);
/* The sums of a block's gradients, after reducer_finish(): computed by `k` now, unless
 * reducer_sum_all() was called; valid until the same thread calls again. */
const float *reducer_sum(struct reducer *r, const struct kernels *k, int thread, size_t i,
                         size_t at, size_t n);
/* Sums this rank's whole pieces, for a caller that needs all sums first. */
void reducer_sum_all(struct reducer *r, const struct kernels *k);
/* Copies block [at, at + n) of `block`, which has the gradients' layout in the arena,
 * to all other ranks; */
void reducer_give(struct reducer *r, const float *block, size_t at, size_t n);
/* and waits for all ranks, when a rank has copied all. */
int reducer_given(struct reducer *r, struct ddp_err *err);

/* Multiplies all of this step's sums that this rank has by `by`, after
 * reducer_sum_all(); and the norm over all ranks. */
void reducer_scale(struct reducer *r, const struct kernels *k, float by);
int reducer_norm(struct reducer *r, const struct kernels *k, double *norm,
                 struct ddp_err *err);

/* The address of this step's sums of piece i, after reducer_sum_all() where ranks
 * share memory. */
float *reducer_sums(const struct reducer *r, size_t i);

#endif
