/* worker/ddp/reducer.h - one sum of all ranks' gradients per step, made during backward
 *
 * Gradients lie in the group's arena. Each rank weights its own by its share of the
 * step's samples (the `scale` of model_train_step), so that their sum is the gradient of
 * the mean loss over all samples, also where ranks have different numbers of them, or
 * none.
 *
 * A few numbers about the step travel in front of the last bucket and cost nothing:
 * whoever is done with reducer_finish() knows the loss over all ranks, and whether a rank
 * wants to stop.
 *
 * Owner: the trainer. The group is borrowed and must outlive it.
 */
#ifndef WORKER_DDP_REDUCER_H
#define WORKER_DDP_REDUCER_H

#include "include/ddprun/group.h"
#include "worker/ddp/bucket.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Summed over the ranks by reducer_finish(). */
struct step_sums {
    float loss;        /* each rank's mean times its share of the samples */
    float correct;     /* right answers: exact up to 2^24 */
    float bad;         /* ranks whose loss is not a number */
    float stop;        /* ranks that were told to stop, */
    float interrupted; /* those of them that were told by SIGINT */
};

struct reducer_settings {
    size_t first_bytes, cap_bytes; /* of buckets */
    bool overlap;                  /* false: all of it after backward */
};

struct reducer;

struct reducer *reducer_create(struct ddp_group *group, const struct model *model,
                               struct reducer_settings settings, struct ddp_err *err);
void reducer_destroy(struct reducer *r); /* NULL is fine; not with a step under way */

size_t reducer_buckets(const struct reducer *r);
/* The block for model_set_grads(). */
float *reducer_grads(struct reducer *r);

/* Before a step. An `idle` rank has no samples in it: its gradients are set to zero here
 * instead of by backward. */
void reducer_begin(struct reducer *r, bool idle);
/* The callback of model_train_step(); `reducer` is a struct reducer. An error shows at
 * reducer_finish(). */
void reducer_ready(size_t offset, size_t count, void *reducer);
/* Waits for everything; `sums` holds this rank's numbers, then everybody's. */
int reducer_finish(struct reducer *r, struct step_sums *sums, struct ddp_err *err);

#endif
