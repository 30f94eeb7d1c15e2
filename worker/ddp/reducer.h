/* worker/ddp/reducer.h - the sum of all ranks' gradients, reduced during backward, and
 * the optimiser's step with it
 *
 * Gradients are in the group's arena. Each rank weights its own by its share of the
 * step's samples (the `scale` of struct model_pass), so that their sum is the gradient
 * of the mean loss over all samples, also where ranks have different numbers of
 * samples, or none.
 *
 * A few numbers about the step are sent along at no extra cost: after reducer_finish()
 * each rank has the loss over all ranks, and whether a rank wants to stop.
 *
 * With `shard`, each rank has the optimiser's states of its own pieces only, a part of
 * every bucket. It gets the sums of these, updates their weights, and all ranks gather
 * the others'. That transfers as many bytes as an all-reduce; with n ranks the optimiser
 * takes an n-th of the memory and of the time. (Rajbhandari et al., "ZeRO", SC 2020,
 * stage 1.)
 *
 * Ranks that all share one host's memory need no buckets, since no transfer can
 * overlap while their CPUs compute backward. reducer_finish() then only sums the step's
 * numbers, which is also a barrier; reducer_step() goes once over this rank's pieces, in
 * blocks that stay in the cache: it sums a block from the others' arenas, updates it, and
 * writes the new weights to the others. Linear layers then have factors in place of
 * gradients (factors.c).
 *
 * Owner: the trainer. The group is borrowed and must outlive it.
 */
#ifndef WORKER_DDP_REDUCER_H
#define WORKER_DDP_REDUCER_H

#include "include/ddprun/group.h"
#include "worker/ddp/bucket.h"
#include "worker/ddp/sums.h"
#include "worker/optim/optim.h"
#include "worker/report/trace.h"

#include <stdbool.h>
#include <stddef.h>

struct reducer_settings {
    size_t first_bytes, cap_bytes; /* of buckets */
    bool overlap;                  /* false: all reductions after backward */
    bool timed;                    /* plan buckets by time, after a few steps */
    bool shard;
    bool elsewhere; /* gradients are not in the host's memory: the reducer only has the
                       plan, and the pieces of the optimiser's states */
    bool direct;    /* ranks that share memory use no buckets, and work as with `shard` */
    struct model *factors; /* then its linear layers, with one batch per step, have
                              factors in place of gradients; NULL: none */
    struct trace *trace;   /* gets a span for each bucket in flight or, where ranks share
                              memory, for each wait of this rank; NULL: none */
};

/* One of this rank's pieces: its weights in the whole block. The pieces of all ranks
 * partition the model. */
struct rank_piece {
    struct bucket at;
    size_t start; /* of its states among those of this rank's pieces, at a cache line */
};

struct reduction {
    struct ddp_request *request; /* owned until it has ended */
    int64_t began_ns;
};

/* A linear layer of which factors are exchanged. */
struct factored {
    struct model_op *layer; /* borrowed */
    size_t floats;          /* of a batch's factors */
    float **places; /* owned, [size]: in my arena, of the ranks from this one on */
};

/* Only its files change it. */
struct reducer {
    struct ddp_group *group; /* borrowed */
    int rank, size;
    struct reducer_settings settings;
    /* in the arena: a head with the step's sums, which keeps the gradients aligned, and
     * the gradients */
    float *block;
    float *grads; /* block + HEAD */
    size_t count; /* gradients */
    /* owned, [size - 1]: blocks of the ranks from the next on; NULL: not direct */
    float **others;
    struct factored *factored; /* owned: layers that have factors */
    int nfactored;
    float *rooms; /* owned: scratch memory for sums, one per thread, */
    size_t room;  /* of so many floats */
    bool summed;  /* this step's pieces have been summed */

    size_t most;               /* most buckets: as many as parameters */
    struct bucket *buckets;    /* owned, [most] */
    struct rank_piece *pieces; /* owned, [most + 1]: of each bucket; the last one's start
                                  is the end of all */
    struct reduction *reductions; /* owned, [most]: of each bucket */
    size_t *counts;               /* owned, [size]: sizes of the parts of a bucket */
    size_t nbuckets, npieces;
    size_t started, ended; /* numbers of buckets, in the plan's order */

    struct bucket *layers; /* owned: what becomes ready together, from the last */
    double *ready; /* owned, [nlayers + 2]: seconds since the step began, and times of two
                      reductions */
    size_t nlayers, seen;
    int watched; /* measured steps; WATCH_STEPS: done */
    int64_t begin_ns;

    struct ddp_err err; /* the first failure of the step */
    bool failed;
};

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
/* The plan as "OFFSET,OFFSET,...", once it is final, else ""; and a plan from such a
 * text, in place of one made by time: a resumed run then adds in the same order. -1:
 * the text is of another model. Without overlap there is one reduction, whatever the
 * plan. */
void reducer_plan_text(const struct reducer *r, char *text, size_t size);
int reducer_use_plan(struct reducer *r, const char *text);

/* Before a step. An `idle` rank has no samples in it: its gradients are set to zero
 * here, not by backward. */
int reducer_begin(struct reducer *r, bool idle, struct ddp_err *err);
/* The `ready` of struct model_pass; `reducer` is a struct reducer. Errors are
 * returned by reducer_finish(). */
void reducer_ready(size_t offset, size_t count, void *reducer);
/* Waits for all reductions; `sums` has this rank's numbers, then those of all. With
 * `elsewhere` it sums these alone, and sees a rank that has died. */
int reducer_finish(struct reducer *r, struct step_sums *sums, struct ddp_err *err);

/* ---- the optimiser ---- */

/* With `shard`: keeps this rank's pieces of whole states, and frees the rest; does
 * nothing if it has only the pieces. */
void reducer_keep_states(const struct reducer *r, struct optim *o);

/* A state that is used, of a piece. */
static inline const float *piece_state(const struct rank_piece *p, const struct optim *o,
                                       int state)
{
    return o->states[state] + (o->shared ? p->start : p->at.offset);
}

/* Gathers the whole states in o->whole, on every rank; reducer_forget_states() frees
 * them. */
int reducer_gather_states(struct reducer *r, struct optim *o, struct ddp_err *err);
void reducer_forget_states(struct optim *o);

/* The parameters of an update with the sums of all gradients times `by`. */
struct step_rule {
    float lr, by;
    double clip_norm; /* largest norm; 0: no clipping */
    bool check;       /* compute the norm also without clipping */
};

/* Updates this rank's pieces, or without `shard` everything; then all ranks have all
 * weights. *norm is that of the gradients if `how` requires it, else 0; if it is not
 * finite, nothing was updated. */
int reducer_step(struct reducer *r, struct optim *o, float *w,
                 const struct step_rule *how, double *norm, struct ddp_err *err);

/* ---- between reducer.c, reducer_step.c and factors.c ---- */

/* The sizes of all ranks' parts of a bucket, in r->counts. */
void reducer_count_parts(struct reducer *r, struct bucket b);
/* How many rows of the layer at `offset` are computed from factors at once; 0: it has
 * no factors. */
size_t reducer_rows_at(const struct reducer *r, size_t offset);
/* Traces a bucket that is complete now. Where ranks share memory, a wait: as bucket 0 for
 * the others' gradients, as bucket 1 for the weights they write. */
void reducer_span(const struct reducer *r, size_t bucket, size_t floats,
                  int64_t began_ns);

/* ---- factors.c ---- */

/* For the layers whose gradients are larger than all ranks' factors; from now on backward
 * stores factors for these. There are none if the ranks' kernels differ, and with them
 * the factors' layout. Every rank calls it; all must share memory. */
int factors_create(struct reducer *r, struct ddp_err *err);
void factors_destroy(struct reducer *r);

/* If gradients [offset, ...) are computed from factors: the floats of one row, else 0. */
size_t factors_row(const struct reducer *r, size_t offset);

/* Copies the factors of the layer at `offset`, if it has any, to the others.
 * factors_give() is called after the layer's backward, factors_idle() in its place on a
 * rank without samples, for all layers; both before a collective, after which all factors
 * have arrived. They must stay unchanged until all ranks have computed their rows. */
void factors_give(const struct reducer *r, size_t offset);
void factors_idle(const struct reducer *r);

/* Computes rows [at, at + n) of the gradient block, whole rows of one layer, summed
 * over the ranks, beginning with this one. May be called by any thread. */
void factors_sum(const struct reducer *r, size_t at, size_t n, float *rows);

#endif
