/* worker/nn/model_impl.h - a model as its own files see it
 *
 * Each layer owns the activation it gives out, `y`, for max_batch samples. Gradients of
 * activations take turns in a few buffers of the largest size: a layer's is taken when
 * the first of those that follow it writes to it, and given back when the layer itself
 * has been walked through. Which one it is, is settled when the model is built.
 */
#ifndef WORKER_NN_MODEL_IMPL_H
#define WORKER_NN_MODEL_IMPL_H

#include "worker/nn/model.h"

enum { MODEL_MAX_SLOTS = 8 };

struct layer {
    const struct layer_spec *spec;
    struct conv_plan *conv; /* one of the three, or none */
    struct linear_plan *linear;
    struct norm_plan *norm;
    float *factors; /* of the weight's gradient: backward leaves them there; NULL: none */
    const struct param *weight, *bias; /* NULL: there is none */
    float *running;                    /* a norm's, in the buffers */
    int in, shortcut;                  /* layers; -1: the batch, none */
    struct map_shape map;              /* of y */
    bool image;                        /* y is in the engine's own layout */
    double work;                       /* multiplications, per sample */
    size_t floats;                     /* of y, per sample */
    float *y;                          /* [max_batch, floats] */
    int slot;                          /* of y's gradient */
};

struct model {
    const struct model_type *type;
    const struct kernels *k;
    struct io_shape io;
    int max_batch, nlayers;
    bool dropout;
    struct layer layers[MODEL_MAX_LAYERS];
    struct param params[2 * MODEL_MAX_LAYERS], buffers[3 * MODEL_MAX_LAYERS];
    size_t nparams, nbuffers;
    size_t count, buffer_count; /* floats in the blocks */
    struct model *of;           /* whose weights and buffers these are; NULL: our own */
    float *weights, *own_weights, *grads, *own_grads, *buffer_block;
    float *slots[MODEL_MAX_SLOTS]; /* gradients of activations */
    model_span_fn span;            /* NULL: nobody watches */
    void *span_arg;
};

/* Layers, plans and memory of a model whose first fields are filled in. */
int model_build(struct model *m, struct ddp_err *err);

#endif
