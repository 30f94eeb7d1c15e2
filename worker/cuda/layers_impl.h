/* worker/cuda/layers_impl.h - a net as its own files see it: layers_make.c and layers.c,
 * which call products; conv.c and product.c, which implement them (products.h); and
 * autotune.c, which chooses the algorithms
 */
#ifndef WORKER_CUDA_LAYERS_IMPL_H
#define WORKER_CUDA_LAYERS_IMPL_H

#include "worker/cuda/layers.h"
#include "worker/cuda/products.h"

#include <stddef.h>

#define WORKSPACE (32u << 20) /* bytes, one for all: layers run one after another */

/* Of a model of tokens the logits are two layers more, behind its own: of as many rows as
 * are made at a time, and of those that are left. */
enum { MAX_PLANS = 16, LOGITS = 2 };

struct layer {
    const struct layer_spec *spec;
    const struct layer_op *op;
    const struct param *weight, *bias; /* NULL: there is none */
    int in, shortcut;                  /* layers; -1: the batch, none */
    int C, H, W;                       /* of its input */
    int K, OH, OW; /* of a convolution before pooling; linear: K features, 1, 1 */
    size_t inputs, outputs,
        wide;     /* elements a sample: given, given out, before pooling */
    size_t rows;  /* of a sample, which lie one after the other: its tokens; 1 */
    bool y_last;  /* y has its channels last */
    bool adds;    /* dx is added to what is there */
    void *y;      /* [max_batch, outputs] */
    uint8_t *arg; /* [max_batch, outputs], when it pools */
    float *running, *saved; /* of a norm; running is in the buffers; of attention */
    double *shared;         /* of one that is normalised over the ranks */
    int slot;               /* of y's gradient */
};

struct layers_plan {
    int n;
    bool warm; /* the libraries know all of its products */
    struct layer_plan layers[CUDA_MAX_LAYERS + LOGITS];
};

/* An algorithm that was chosen for a product, instead of the library's own choice. It
 * stays as long as the net does: graphs that were recorded with it may be played on. */
struct tuned {
    char *key; /* owned, as the algorithm is */
    struct algorithm how;
};

struct layers {
    struct layers_settings settings;
    enum cuda_type type;      /* of activations */
    bool last;                /* images have their channels last */
    bool bare;                /* only products are wanted */
    bool tokens;              /* are learnt, and the logits are this stage's */
    const struct model *host; /* borrowed: it is compiled there */
    struct layers *of;        /* this is a view of; NULL: of none */
    int from, to;             /* of nlayers, the whole model's */
    struct layers_part part;
    cudaStream_t stream;
    cublasLtHandle_t blas;
    cudnnHandle_t dnn;
    int nlayers, oldest; /* plan to go, where there is no room */
    struct layer layers[CUDA_MAX_LAYERS + LOGITS];
    cudnnFilterDescriptor_t filters[CUDA_MAX_LAYERS];
    cudnnConvolutionDescriptor_t convs[CUDA_MAX_LAYERS];
    float *weights; /* borrowed */
    char *narrow;   /* the same in `type`; the same block in fp32 */
    float *buffers;
    float *grads;     /* where those of the batch under way go */
    void *x, *z, *dw; /* input; a convolution's product and its gradient; a filter's
                         gradient in `type` */
    void *slots[MODEL_MAX_SLOTS + 1]; /* gradients of activations take turns; logits' */
    float *losses; /* of tokens: each one's, and whether it was right */
    float *room;   /* for sums */
    void *workspace;
    size_t workspace_bytes; /* WORKSPACE, or what some convolution cannot do without */
    struct layers_plan *plans[MAX_PLANS];
    int nplans;
    struct tuned *chosen; /* owned */
    size_t nchosen;
    layers_sum_fn sum; /* NULL: every rank's norms are its own */
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

/* A parameter's place in a block of this stage's. */
static inline size_t place_of(const struct layers *net, const struct param *p)
{
    return p->offset - net->part.offset;
}

/* A parameter as the layers multiply with it. */
static inline void *weights_at(const struct layers *net, const struct param *p)
{
    return net->narrow + place_of(net, p) * type_size(net->type);
}

/* The model's outputs are float, whatever the layers are. */
static inline enum cuda_type output_type(const struct layers *net, int i)
{
    return i < net->nlayers - !net->tokens ? net->type : CUDA_F32;
}

/* Behind the last that may have products. */
static inline int products_end(const struct layers *net)
{
    return net->to + (net->tokens ? LOGITS : 0);
}

/* What layer i was given; its gradient, NULL if it is not needed. */
static inline const void *input_of(const struct layers *net, const struct layer *l)
{
    return l->in < 0 ? net->x : net->layers[l->in].y;
}

static inline void *gradient_of(const struct layers *net, int layer)
{
    return layer < 0 ? NULL : net->slots[net->layers[layer].slot];
}

/* layers.c: on the stream, each of a plan's products once, by an algorithm that its
 * library does not refuse. */
int layers_settle(struct layers *net, struct layers_plan *p, float *grads,
                  struct ddp_err *err);

/* ---- autotune_apply.c ---- */

/* A product, in a plan. */
struct site {
    const struct products *of;
    const struct layer_plan *plan;
    int layer;
    enum pass pass;
    const char *key;
};

/* For each of a plan's; anything but 0 ends it. */
typedef int (*product_fn)(struct layers *net, const struct site *at, void *arg,
                          struct ddp_err *err);
int layers_each_product(struct layers *net, const struct layers_plan *p, product_fn one,
                        void *arg, struct ddp_err *err);
/* NULL: nothing is chosen for it. */
const struct tuned *tuned_find(const struct layers *net, const char *key);
/* A plan takes what has been chosen for its products. */
void tuned_take(struct layers *net, struct layers_plan *p);
/* The end of all that was. */
void tuned_free(struct layers *net);

#endif
