/* worker/cuda/layers_impl.h - shared by the files of a net: layers_make.c and
 * layers.c, which call products; conv.c and product.c, which implement them
 * (products.h); and autotune.c, which chooses the algorithms
 */
#ifndef WORKER_CUDA_LAYERS_IMPL_H
#define WORKER_CUDA_LAYERS_IMPL_H

#include "worker/cuda/layers.h"
#include "worker/cuda/products.h"

#include <stddef.h>

/* Bytes, shared by all layers, which run one after another. */
#define WORKSPACE (32u << 20)

/* In a model of tokens the logits are two additional layers: one for the rows computed
 * at a time, one for the remaining rows. */
enum { MAX_PLANS = 16, LOGITS = 2 };

struct layer {
    const struct layer_spec *spec;
    const struct layer_op *op;
    const struct param *weight, *bias; /* NULL: none */
    int in, shortcut;                  /* indices of layers; -1: the batch, none */
    int C, H, W;                       /* of its input */
    int K, OH, OW; /* of a convolution before pooling; linear: K features, 1, 1 */
    size_t inputs, outputs, wide; /* elements per sample: of the input, the output, and
                                     the output before pooling */
    size_t rows;                  /* per sample: tokens; else 1 */
    bool adds;                    /* dx is added to its buffer */
    void *y;                      /* [max_batch, outputs] */
    uint8_t *arg;                 /* [max_batch, outputs], if it pools */
    float *running;               /* of a norm, in the buffers */
    float *saved;                 /* of norms and attention */
    double *shared;               /* of a norm over the ranks */
    int slot;                     /* of y's gradient */
};

struct layers_plan {
    int n;
    bool warm; /* all its products have run once */
    struct layer_plan layers[CUDA_MAX_LAYERS + LOGITS];
};

/* The plan of an engine of cuDNN for a convolution. */
struct built {
    char *key, *name;         /* owned: the product's, the engine's */
    struct conv_graph *graph; /* owned */
};

/* An algorithm chosen for a product in place of the library's default. Kept as long as
 * the net, since captured graphs use it. */
struct tuned {
    char *key; /* owned */
    struct algorithm how;
};

struct layers {
    struct layers_settings settings;
    enum cuda_type type;      /* of activations */
    bool bare;                /* launch products only */
    bool tokens;              /* a model of tokens, and this stage has the logits */
    const struct model *host; /* borrowed: the compiled model */
    struct layers *of;        /* NULL unless this is a view */
    int from, to;             /* of nlayers, the whole model's */
    struct layers_part part;
    cudaStream_t stream;
    cublasLtHandle_t blas;
    cudnnHandle_t dnn;
    int nlayers, oldest; /* the plan to replace when all places are used */
    struct layer layers[CUDA_MAX_LAYERS + LOGITS];
    float *weights; /* borrowed */
    char *narrow;   /* weights converted to `type`; the same block in fp32 */
    float *buffers;
    float *grads;     /* of the micro-batch in flight */
    void *x, *z, *dw; /* input; a convolution's product and its gradient; a filter's
                         gradient in `type` */
    /* gradients of activations; the last is the logits' */
    void *slots[MODEL_MAX_SLOTS + 1];
    float *losses; /* per token: the loss, and whether it was predicted correctly */
    float *room;   /* for partial sums */
    void *workspace;
    size_t workspace_bytes; /* WORKSPACE, or more if a convolution needs it */
    struct layers_plan *plans[MAX_PLANS];
    int nplans;
    struct tuned *chosen; /* owned */
    struct built *built;  /* owned: each convolution's, by any number of samples */
    size_t nchosen, nbuilt;
    layers_sum_fn sum; /* NULL: each rank normalises by itself */
    void *sum_arg;
    int (*done)(const char *layer, char phase, void *arg, struct ddp_err *err);
    void *done_arg; /* NULL `done`: not observed */
};

static inline size_t type_size(enum cuda_type type)
{
    return type == CUDA_F32 ? 4 : 2;
}

static inline bool is_conv(const struct layer *l)
{
    return l->spec->kind == LAYER_CONV;
}

/* The offset of a parameter in a block of this stage. */
static inline size_t place_of(const struct layers *net, const struct param *p)
{
    return p->offset - net->part.offset;
}

/* A parameter in the type of products. */
static inline void *weights_at(const struct layers *net, const struct param *p)
{
    return net->narrow + place_of(net, p) * type_size(net->type);
}

/* The model's outputs are float, whatever the layers' type. */
static inline enum cuda_type output_type(const struct layers *net, int i)
{
    return i < net->nlayers - !net->tokens ? net->type : CUDA_F32;
}

/* One past the last layer that may have products. */
static inline int products_end(const struct layers *net)
{
    return net->to + (net->tokens ? LOGITS : 0);
}

/* The layer's input. gradient_of(): of a layer's output; NULL for the batch (-1). */
static inline const void *input_of(const struct layers *net, const struct layer *l)
{
    return l->in < 0 ? net->x : net->layers[l->in].y;
}

static inline void *gradient_of(const struct layers *net, int layer)
{
    return layer < 0 ? NULL : net->slots[net->layers[layer].slot];
}

/* layers.c: runs each of a plan's products once, with an algorithm that its library
 * accepts. */
int layers_settle(struct layers *net, struct layers_plan *p, float *grads,
                  struct ddp_err *err);

/* ---- autotune_apply.c ---- */

/* A product of a plan. */
struct site {
    const struct products *of;
    const struct layer_plan *plan;
    int layer;
    enum pass pass;
    const char *key;
};

/* Called for each product of a plan; a result other than 0 stops. */
typedef int (*product_fn)(struct layers *net, const struct site *at, void *arg,
                          struct ddp_err *err);
int layers_each_product(struct layers *net, const struct layers_plan *p, product_fn one,
                        void *arg, struct ddp_err *err);
/* NULL: no choice. */
const struct tuned *tuned_find(const struct layers *net, const char *key);
/* Makes a plan use the chosen algorithms. */
void tuned_take(struct layers *net, struct layers_plan *p);
/* Frees all. */
void tuned_free(struct layers *net);

#endif
