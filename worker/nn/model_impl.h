/* worker/nn/model_impl.h - a model as its own files see it
 *
 * Each layer owns the activation it gives out, `y`, for max_batch samples. Which buffer
 * its gradient is in is settled when the model is built.
 */
#ifndef WORKER_NN_MODEL_IMPL_H
#define WORKER_NN_MODEL_IMPL_H

#include "worker/nn/model.h"

struct layer;

/* What a layer gives the next. RECTIFIED: images after a ReLU, of which a next
 * convolution makes use on its way back. The first layer is given the data. */
enum flow {
    FLOW_DATA = 1,
    FLOW_TOKENS = 2,
    FLOW_IMAGES = 4,    /* in the engine's own layout */
    FLOW_RECTIFIED = 8, /* the same */
    FLOW_FEATURES = 16, /* numbers of a sample, in their order */
    FLOW_ROWS = 32      /* the same, for each token */
};

/* A kind of layers: what it has, and what it does. */
struct op {
    const char *name;
    bool product;   /* its work is multiplications */
    bool sums;      /* can add its input's gradient to what is there */
    unsigned takes; /* enum flow */
    int (*add)(struct model *m, int i, struct map_shape in, struct ddp_err *err);
    void (*init)(struct model *m, const struct layer *l, uint64_t key); /* first values */
    void (*forward)(struct model *m, struct layer *l, const struct batch *b, bool learn);
    void (*back)(struct model *m, const struct layer *l, const struct batch *b);
};
extern const struct op op_conv, op_linear, op_norm, op_mean, op_embed, op_layer_norm,
    op_dense, op_gelu, op_attention;

struct layer {
    const struct layer_spec *spec;
    const struct op *op;
    struct conv_plan *conv; /* one of the three, or none */
    struct linear_plan *linear;
    struct norm_plan *norm;
    float *factors; /* of the weight's gradient: backward leaves them there; NULL: none */
    const struct param *weight, *bias; /* NULL: there is none */
    float *running;                    /* a norm's, in the buffers */
    int in, shortcut;                  /* layers; -1: the batch, none */
    struct map_shape wide, map;        /* of y before pooling; of y */
    enum flow flow;                    /* what y is */
    bool adds;                         /* dx is added to what is there */
    double work;                       /* multiplications, per sample */
    size_t floats;                     /* of y, per sample */
    float *y;                          /* [max_batch, floats] */
    float *kept, *room;                /* for going back; while at work; NULL: nothing */
    int slot;                          /* of y's gradient */
};

struct model {
    struct model_type *type; /* owned, but for a view's */
    const struct kernels *k;
    struct io_shape io;
    int max_batch, nlayers;
    bool dropout;
    struct layer *layers;
    struct param *params, *buffers;
    size_t nparams, nbuffers;
    size_t count, buffer_count; /* floats in the blocks */
    struct model *of;           /* whose weights and buffers these are; NULL: our own */
    float *weights, *own_weights, *grads, *own_grads, *buffer_block;
    float *slots[MODEL_MAX_SLOTS]; /* gradients of activations */
    float *room;                   /* of products, in sequences */
    struct head *head;             /* of a model of tokens; else NULL */
    model_span_fn span;            /* NULL: not measured */
    void *span_arg;
};

/* Layers, plans and memory of a model whose first fields are filled in. */
int model_build(struct model *m, struct ddp_err *err);

/* Give a layer a parameter, or a buffer, called LAYER.WHAT. */
const struct param *model_add_param(struct model *m, const char *layer, const char *what,
                                    int ndim, const int dims[4]);
void model_add_buffer(struct model *m, const char *layer, const char *what, int ndim,
                      const int dims[4]);

/* A layer's input; the gradient of its output, NULL: it is not needed. */
static inline const float *input_of(const struct model *m, const struct layer *l,
                                    const struct batch *b)
{
    return l->in < 0 ? b->x : m->layers[l->in].y;
}

static inline float *gradient_of(const struct model *m, int layer)
{
    return layer < 0 ? NULL : m->slots[m->layers[layer].slot];
}

/* Mean 0, variance 1. */
float model_normal(uint64_t key, uint64_t i);

/* The head of a model of tokens (head.c): logits, a piece of the rows at a time, their
 * loss, and its gradients: `dy` of the last layer, and of the weights, NULL: none. */
struct head *head_create(const struct model *m);
void head_free(struct head *h);
float head_loss(const struct model *m, const struct batch *b, float *dy, float scale,
                int *correct);

#endif
