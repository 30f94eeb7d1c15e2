/* tests/worker/nn/train_step.h - a whole model forward and backward, for tests and bench;
 * the engines run it in parts
 */
#ifndef TESTS_WORKER_NN_TRAIN_STEP_H
#define TESTS_WORKER_NN_TRAIN_STEP_H

#include "common/mem.h"
#include "worker/nn/model.h"

/* The model called `name`, with memory; its type stays until the process ends. */
static inline struct model *model_create(const char *name, struct io_shape io,
                                         int max_batch, const struct kernels *kernels,
                                         struct ddp_err *err)
{
    static struct model_type **types;
    static size_t n;
    struct model_type *type = model_type_find(name, err);
    struct model *m = type ? model_plan(type, io, max_batch, kernels, err) : NULL;
    types = (struct model_type **)xrealloc(types, n + 1, sizeof *types);
    types[n++] = type;
    if (m)
        model_allocate(m);
    return m;
}

/* Returns the loss; the gradients are in model_grads(). */
static inline float train_step(struct model *m, struct model_pass pass)
{
    int correct;
    model_pass_forward(m, &pass, 0, m->nlayers);
    float loss = model_pass_loss(m, &pass, &correct);
    model_pass_back(m, &pass, 0, m->nlayers);
    return loss;
}

#endif
