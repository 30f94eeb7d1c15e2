/* worker/pipeline.h - pipeline parallelism within a rank, by pipeline_schedule.h
 *
 * Each stage is a thread with its share of the rank's CPUs; the caller is the first.
 * Each micro-batch has activations of its own (a view of the model). Gradients are
 * added in the order of micro-batches, so the result does not depend on thread timing.
 */
#ifndef WORKER_PIPELINE_H
#define WORKER_PIPELINE_H

#include "worker/nn/model.h"
#include "worker/pipeline_schedule.h"

struct pipeline;

/* For batches of up to max_batch in up to `micro` micro-batches; `threads`: CPUs of
 * both stages together; `extra`: a block like the model's gradients, borrowed. */
struct pipeline *pipeline_create(struct model *model, int max_batch, int micro,
                                 int threads, float *extra, struct ddp_err *err);
void pipeline_destroy(struct pipeline *p); /* NULL is fine */

/* Forward and backward of a batch. `bad`: the view whose loss was the first that is not a
 * number, NULL: none; `given`: its batch, until the next step. */
struct batch_result {
    float loss;
    int correct;
    struct model *bad;
    const struct batch *given;
};
struct batch_result pipeline_step(struct pipeline *p, const struct model_pass *pass);

#endif
