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
/* The plan as "OFFSET,OFFSET,...", once it is final, else ""; and a plan from such a
 * text, in place of one made by time: a resumed run then adds in the same order. -1:
 * the text is of another model. Without overlap there is one reduction, whatever the
 * plan. */
void reducer_plan_text(const struct reducer *r, char *text, size_t size);
int reducer_use_plan(struct reducer *r, const char *text);
/* The plan, of reducer_buckets(). */
const struct bucket *reducer_plan(const struct reducer *r);
/* The block of this rank's gradients. */
float *reducer_grads(struct reducer *r);

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

/* One of this rank's pieces: its weights in the whole block. The pieces of all ranks
 * partition the model. */
struct rank_piece {
    struct bucket at;
    size_t start; /* of its states among those of this rank's pieces, at a cache line */
};

const struct rank_piece *reducer_pieces(const struct reducer *r, size_t *n);
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

#endif
