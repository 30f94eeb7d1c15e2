/* worker/optim/optim.h - optimisers and learning-rate schedules
 *
 * An optimiser keeps up to three blocks of floats with the layout of the parameters.
 * They have the names of PyTorch's optimiser states, since they are saved in
 * checkpoints. Like weights and gradients they begin with a cache line: a vector loop
 * that first walks to an aligned element would else round other elements differently from
 * run to run, and a resumed run would not be the same to the bit.
 *
 * The third is an exponential moving average of the weights: after the first step the
 * weights themselves, later average * e + (1 - average) * w. That is
 * torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn(average), updated after
 * each optimizer.step(); timm's ModelEmaV2 differs in the first step only, which it
 * averages with the initial weights. As there, without use_buffers, running statistics
 * are not averaged.
 */
#ifndef WORKER_OPTIM_OPTIM_H
#define WORKER_OPTIM_OPTIM_H

#include "include/ddprun/err.h"
#include "worker/kernels/kernels.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { OPTIM_AVERAGE = 2, OPTIM_STATES };

struct optim_settings {
    float momentum; /* sgd */
    float decay;    /* weight decay, added to the gradient (L2); adamw: of the weight */
    float beta2;    /* adam, adamw: PyTorch's second beta; 0: the type's */
    float average;  /* what the average keeps of itself in a step; 0: there is none */
};

struct optim_type {
    const char *name;
    enum optim_rule rule;
    bool decoupled;            /* decay is of the weight, as adamw's */
    double lr, decay;          /* when the user gives none */
    float b1, b2, eps;         /* of the formulas; adadelta: b1 is its rho */
    const char *const *states; /* names of OPTIM_STATES; NULL: not used */
};

/* sgd, adam and adamw as in PyTorch; adadelta with its rho 0.9 and eps 1e-6. NULL: no
 * such. */
const struct optim_type *optim_find(const char *name);

/* What an optimiser has beside its states: the same on all ranks, and in checkpoints. */
struct optim_counts {
    uint64_t steps; /* taken so far */
    /* fp16: what the loss is multiplied by (0: not scaled), and steps since
     * that changed */
    float loss_scale;
    uint32_t good_steps;
};

struct optim {
    const struct optim_type *type;
    float b1, b2;  /* of the formulas (kernels.h): as they were set, or the type's */
    float penalty; /* weight decay that is added to the gradient, */
    float shrink;  /* or that the weight loses, times lr */
    float nearer;  /* how much of the way to the weights the average goes in a step */
    const struct kernels *kernels;
    size_t n;                    /* floats in a block */
    float *states[OPTIM_STATES]; /* owned; NULL where not used. Of all n floats, or */
    bool shared;                 /* of this rank's: the ranks share them */
    float *whole[OPTIM_STATES];  /* owned: then all of them, while they are wanted */
    size_t *borders; /* owned, [nborders], ascending offsets of weights: from the first to
                        the second, the third to the fourth, ... is no decay */
    size_t nborders;
    struct optim_counts counts;
};

void optim_init(struct optim *o, const struct optim_type *type,
                struct optim_settings settings, const struct kernels *kernels, size_t n);
/* Does it use this state? */
bool optim_uses(const struct optim_type *type, const struct optim_settings *settings,
                int state);
/* Weights [offset, offset + count) do not decay. Called in ascending order, before the
 * engine is opened. */
void optim_exempt(struct optim *o, size_t offset, size_t count);
void optim_finish(struct optim *o); /* frees; a zeroed struct is fine */

/* One step over the whole block. */
void optim_step(struct optim *o, float *w, const float *g, float lr);

/* The same for n weights from w[at] on, with their gradients g and the states from
 * `state` on, after counts.steps was increased. */
void optim_piece(struct optim *o, size_t at, size_t state, size_t n, float *w,
                 const float *g, float lr);

/* A state of all n floats, NULL where it is not used. */
static inline float *optim_whole(const struct optim *o, int state)
{
    return o->whole[state] ? o->whole[state] : o->states[state];
}
/* Exchanges the weights and their average, of all n floats. */
void optim_swap_average(struct optim *o, float *w);

/* How the learning rate goes over a run, as a factor of --lr. */
enum schedule_kind { SCHEDULE_CONSTANT, SCHEDULE_STEP, SCHEDULE_COSINE, SCHEDULE_LINEAR };
struct schedule {
    enum schedule_kind kind;
    double factor;   /* SCHEDULE_STEP: of each epoch; COSINE, LINEAR: at the end */
    uint64_t warmup; /* steps in which it rises to --lr */
};

/* "constant", "step:0.7", "cosine:0.1", "linear:0.1"; "step" is "step:0.7", PyTorch's
 * example, "cosine" and "linear" end at 0. */
int schedule_parse(const char *text, struct schedule *out, struct ddp_err *err);
/* `at` epochs have been done, fractions included, this part of the run, and `steps`. */
double schedule_factor(const struct schedule *s, double at, double part, uint64_t steps);

#endif
