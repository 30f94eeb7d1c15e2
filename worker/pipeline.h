/* worker/pipeline.h - pipeline parallelism within a rank
 *
 * The layers are split into stages, a batch into micro-batches. With S stages, in round
 * r of n + S - 1 stage s goes forward with micro-batch r - s, and then backward with
 * r - (S - 1), where there are such. So a stage alternates between the two as soon as it
 * can ("1F1B", Narayanan et al., "PipeDream", SOSP 2019), and has at most S - s
 * micro-batches in flight, which bounds the activations it keeps. The last stage goes
 * backward right after forward.
 *
 * Both engines do so: threads of a CPU and streams of GPUs. A forward step needs the
 * previous stage's forward step of the same micro-batch, a backward step the next
 * stage's backward step.
 */
#ifndef WORKER_PIPELINE_H
#define WORKER_PIPELINE_H

#include "worker/nn/model.h"

/* ---- pipeline_schedule.c: what both have ---- */

enum { PIPELINE_STAGES = 2 };

/* Micro-batches of a batch of n samples: `wanted`, or one for each sample; one of none.
 */
int pipeline_micro_batches(int n, int wanted);
/* Micro-batch m of `parts`, of n samples, the step's batch `batch`. */
struct micro_batch {
    int from, n; /* samples of the batch */
    int number;  /* in the rank's step: dropout's draws (rng.h) */
};
struct micro_batch pipeline_micro_batch(int batch, int n, int parts, int m);

/* The layers of each stage, from first[0] to first[stages]; too few of them are an error
 * of --stages. */
int pipeline_split(const struct model *m, int stages, int *first, struct ddp_err *err);
/* "conv1 to conv2 | fc1 to fc2"; the caller frees. */
char *pipeline_describe(const struct model *m, int stages);

/* ---- pipeline.c: threads ----
 *
 * Each stage is a thread with its share of the rank's CPUs; the caller is the first.
 * Each micro-batch has activations of its own (a view of the model). Gradients are
 * added in the order of micro-batches, so the result does not depend on thread timing. */

struct pipeline;

/* For batches of up to max_batch in up to `micro` micro-batches; `threads`: CPUs of
 * both stages together; `extra`: a block like the model's gradients, borrowed. */
struct pipeline *pipeline_create(struct model *model, int max_batch, int micro,
                                 int threads, float *extra, struct ddp_err *err);
void pipeline_destroy(struct pipeline *p); /* NULL is fine */

/* Forward and backward of a batch. `bad`: the view whose loss was the first that is not a
 * number, NULL: none. */
struct batch_result {
    float loss;
    int correct;
    const struct model *bad;
};
struct batch_result pipeline_step(struct pipeline *p, const struct model_pass *pass);

#endif
