/* worker/pipeline_schedule.h - the 1F1B schedule of pipeline parallelism
 *
 * The layers are split into stages, a batch into micro-batches. A stage alternates
 * between forward and backward as soon as it can ("1F1B", Narayanan et al.,
 * "PipeDream", SOSP 2019): with S stages, stage s has at most S - s micro-batches in
 * flight, which bounds the activations it keeps. The last stage goes backward right
 * after forward.
 *
 * Both engines use it: threads of a CPU and streams of GPUs. A forward step needs the
 * previous stage's forward step of the same micro-batch, a backward step the next
 * stage's backward step.
 */
#ifndef WORKER_PIPELINE_SCHEDULE_H
#define WORKER_PIPELINE_SCHEDULE_H

#include "worker/nn/model.h"

#include <stdbool.h>

enum { PIPELINE_STAGES = 2 };

struct pipeline_step {
    bool back;
    int micro; /* the micro-batch */
};

/* The k-th step of `stage` of `stages`; there are 2 n with n micro-batches. */
struct pipeline_step pipeline_step_at(int stage, int stages, int n, int k);

/* Micro-batches of a batch of n samples: `wanted`, or one for each sample; one of none.
 */
int pipeline_micro_batches(int n, int wanted);
/* Micro-batch m of `parts`, of n samples, the step's batch `batch`. */
struct micro_batch {
    int from, n; /* samples of the batch */
    int number;  /* dropout's seed is `number` << 40 larger, so that it drops other units
                  */
};
struct micro_batch pipeline_micro_batch(int batch, int n, int parts, int m);

/* The layers of each stage, from first[0] to first[stages]; too few of them are an error
 * of --stages. */
int pipeline_split(const struct model *m, int stages, int *first, struct ddp_err *err);
/* "conv1 to conv2 | fc1 to fc2"; returns its length. */
size_t pipeline_describe(const struct model *m, int stages, char *text, size_t size);

#endif
