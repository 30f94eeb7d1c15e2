/* worker/nn/model.h - a model: parameters in one block, forward, backward layer by layer
 *
 * All parameters lie in one block of floats and all gradients in another of the same
 * layout, so that optimiser, checkpoint and gradient reduction work on plain ranges. The
 * block for gradients is handed in by the owner (it may lie in the group's shared arena).
 * Parameter names are PyTorch's ("conv1.weight"), in PyTorch's order.
 *
 * A model type is a list of layers, most of it one line each: adding a model is one file
 * and one row in model.c's table.
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

enum layer_kind { LAYER_END, LAYER_CONV, LAYER_LINEAR };

/* One layer with what follows it: its ReLU, its pooling, its dropout. Convolutions come
 * before linear layers and always have a ReLU. */
struct layer_spec {
    enum layer_kind kind;
    const char *name; /* its parameters are NAME.weight and NAME.bias */
    int outputs;      /* channels or features; 0: as many as the data have */
    int size;         /* of a convolution's square kernel */
    bool relu, pool;
    float dropout; /* probability, after a ReLU; 0: none */
};

#define MODEL_MAX_LAYERS 8

struct model_type {
    const char *name, *summary;
    enum task task;
    struct layer_spec layers[MODEL_MAX_LAYERS + 1]; /* the last is LAYER_END */
};

extern const struct model_type *const model_types[]; /* NULL-terminated */
extern const struct model_type model_linreg, model_mlp, model_cnn;

/* An instance of the model called `name`, for batches of up to max_batch. NULL with `err`
 * when there is none of that name or the data do not fit it. */
struct model *model_create(const char *name, struct io_shape io, int max_batch,
                           const struct kernels *kernels, struct ddp_err *err);
struct model *model_create_type(const struct model_type *type, struct io_shape io,
                                int max_batch, const struct kernels *kernels,
                                struct ddp_err *err);
void model_destroy(struct model *m);

const struct model_type *model_type(const struct model *m);
const struct param *model_params(const struct model *m, size_t *n);
size_t model_param_count(const struct model *m); /* floats in a block */
float *model_weights(struct model *m);           /* the block, owned by the model */
/* Use this block for gradients (borrowed, model_param_count() floats) instead of the
 * model's own. */
void model_set_grads(struct model *m, float *grads);
float *model_grads(struct model *m);

/* Switch dropout off (false) or on again: comparisons with another framework need steps
 * without chance. */
void model_set_dropout(struct model *m, bool on);

/* PyTorch's default initialisation of Linear and Conv2d: weights and biases uniform in
 * +-1/sqrt(fan_in), which is what kaiming_uniform_(a=sqrt(5)) comes to. From `seed`
 * alone: the same on every rank and with every engine. */
void model_init(struct model *m, uint64_t seed);

/* Outputs [n, outputs]; valid until the next call. */
const float *model_forward(struct model *m, const struct batch *b);

/* Forward and backward in training mode (dropout on, drawn from (seed, step)). Two ranks
 * must not drop the same units of their different samples: pass a different seed on each,
 * such as the job's seed plus the rank. Gradients are those of the mean loss over the
 * batch, times `scale`. `ready` (may be NULL) is called for each range
 * [offset, offset+count) as soon as it is final; ranges come in descending order of
 * offset and cover the block. Returns the loss; *correct counts right answers (0 for
 * TASK_REGRESS). */
float model_train_step(struct model *m, const struct batch *b, float scale, uint64_t seed,
                       uint64_t step, int *correct,
                       void (*ready)(size_t offset, size_t count, void *arg), void *arg);

/* Loss and right answers without gradients and dropout. */
float model_evaluate(struct model *m, const struct batch *b, int *correct);

#endif
