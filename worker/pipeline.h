/* worker/pipeline.h - one model over two engines of a rank: model parallel, pipelined
 *
 * The layers are cut in two stages of about equal work. A batch is cut in micro-batches;
 * while the second stage has one of them, the first has the next. Each stage is a thread
 * with its own share of the rank's CPUs: the caller is the first stage.
 *
 * Every micro-batch has activations of its own (a view of the model), and its gradients
 * are added up in their order, so that the result does not depend on which thread was
 * faster. Which stage does what after what is in turns.h.
 */
#ifndef WORKER_PIPELINE_H
#define WORKER_PIPELINE_H

#include "worker/nn/model.h"
#include "worker/turns.h"

#include <stdbool.h>

struct pipeline;

/* For batches of up to max_batch in up to `micro` pieces; `threads` CPUs for both stages
 * together. The gradients go to model_grads(model) as it then is. */
struct pipeline *pipeline_create(struct model *model, int max_batch, int micro,
                                 int threads, const struct kernels *kernels,
                                 struct ddp_err *err);
void pipeline_destroy(struct pipeline *p); /* NULL is fine */

/* As model_train_step(). `adds`: the gradients are added to those that are there. `bad`
 * is the view whose loss was the first that is not a number, NULL: none; `of` is what it
 * was given, until the next step. */
float pipeline_step(struct pipeline *p, const struct model_pass *pass, bool adds,
                    int *correct, struct model **bad, const struct batch **of);

/* "conv1 to conv2 | fc1 to fc2" */
void pipeline_describe(const struct pipeline *p, char *text, size_t size);
/* model_observe() of what stage `stage` does. */
void pipeline_observe(struct pipeline *p, model_span_fn span,
                      void *args[PIPELINE_STAGES]);

#endif
