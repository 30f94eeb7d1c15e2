/* worker/nn/model.h - a model: parameters in one block, forward, backward layer by layer
 *
 * All parameters lie in one block of floats and all gradients in another of the same
 * layout, so that optimiser, checkpoint and gradient reduction work on plain ranges. The
 * block for gradients is handed in by the owner (it may lie in the group's shared arena).
 * Parameter names are PyTorch's ("conv1.weight"), in PyTorch's order.
 *
 * Backward goes from the last layer to the first and reports each parameter range as its
 * gradient becomes final: that is what reduction overlaps with.
 */
#ifndef WORKER_NN_MODEL_H
#define WORKER_NN_MODEL_H

#include "include/ddprun/err.h"
#include "worker/kernels/kernels.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct param {
    const char *name; /* "fc1.weight" */
    int ndim, dims[4];
    size_t offset, count; /* floats, in the blocks */
};

enum task { TASK_CLASSIFY, TASK_REGRESS };

/* What the data look like. */
struct io_shape {
    int C, H, W; /* an input */
    int outputs; /* classes, or regression targets */
};

struct model; /* an instance: layers, activations for up to max_batch */

struct batch {
    const float *x;        /* [n, C, H, W] */
    const uint8_t *labels; /* [n], TASK_CLASSIFY */
    const float *targets;  /* [n, outputs], TASK_REGRESS */
    int n;
};

struct model_type {
    const char *name, *summary;
    enum task task;
    struct model *(*create)(const struct model_type *type, struct io_shape io,
                            int max_batch, const struct kernels *kernels,
                            struct ddp_err *err);
};

/* The table; adding a model is one file and one row. */
extern const struct model_type *const model_types[]; /* NULL-terminated */
extern const struct model_type model_linreg, model_mlp, model_cnn;

struct model *model_create(const char *name, struct io_shape io, int max_batch,
                           const struct kernels *kernels, struct ddp_err *err);
void model_destroy(struct model *m);

const struct model_type *model_type(const struct model *m);
const struct param *model_params(const struct model *m, size_t *n);
size_t model_param_count(const struct model *m); /* floats in a block */
float *model_weights(struct model *m);           /* the block, owned by the model */
/* Use this block for gradients (borrowed, model_param_count() floats) instead of the
 * model's own. */
void model_set_grads(struct model *m, float *grads);
float *model_grads(struct model *m);

/* PyTorch's default initialisation, from `seed` alone: the same on every rank. */
void model_init(struct model *m, uint64_t seed);

/* Outputs [n, outputs]; valid until the next call. */
const float *model_forward(struct model *m, const struct batch *b);

/* Forward and backward in training mode (dropout on, drawn from (seed, step)). Gradients
 * are those of the mean loss over the batch, times `scale`. `ready` (may be NULL) is
 * called for each range [offset, offset+count) as soon as it is final; ranges come in
 * descending order of offset and cover the block. Returns the loss; *correct counts right
 * answers. */
float model_train_step(struct model *m, const struct batch *b, float scale, uint64_t seed,
                       uint64_t step, int *correct,
                       void (*ready)(size_t offset, size_t count, void *arg), void *arg);

/* Loss and right answers without gradients and dropout. */
float model_evaluate(struct model *m, const struct batch *b, int *correct);

#endif
