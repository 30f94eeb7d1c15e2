/* worker/cuda/layers_impl.h - layers as their own files see them: layers_make.c,
 * layers.c, product.c (linear layers) and conv.c
 */
#ifndef WORKER_CUDA_LAYERS_IMPL_H
#define WORKER_CUDA_LAYERS_IMPL_H

#include "worker/cuda/layers.h"

#include <stddef.h>

#define WORKSPACE (32u << 20) /* bytes, one for all: layers run one after another */

enum { MAX_PLANS = 16, MAX_SLOTS = 8 };

/* D = op(A) op(B), column-major. */
struct product {
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algo;
};

struct layer {
    const struct layer_spec *spec;
    const struct param *weight, *bias; /* NULL: there is none */
    int in, shortcut;                  /* layers; -1: the batch, none */
    int C, H, W;                       /* of its input */
    int K, OH, OW; /* of a convolution before pooling; linear: K features, 1, 1 */
    size_t inputs, outputs,
        wide;               /* elements a sample: given, given out, before pooling */
    bool y_last;            /* y has its channels last */
    bool adds;              /* dx is added to what is there */
    void *y;                /* [max_batch, outputs] */
    uint8_t *arg;           /* [max_batch, outputs], when it pools */
    float *running, *saved; /* of a norm; running is in the buffers */
    double *shared;         /* of one that is normalised over the ranks */
    int slot;               /* of y's gradient */
};

struct layer_plan {
    struct product forward, weights, inputs; /* linear */
    /* a convolution */
    cudnnTensorDescriptor_t x, z;
    cudnnConvolutionFwdAlgo_t forward_algo;
    cudnnConvolutionBwdFilterAlgo_t weights_algo;
    cudnnConvolutionBwdDataAlgo_t inputs_algo;
};

struct layers_plan {
    int n;
    bool warm; /* the libraries know all of its products */
    struct layer_plan layers[MODEL_MAX_LAYERS];
};

struct layers {
    struct layers_settings settings;
    enum cuda_type type; /* of activations */
    bool last;           /* images have their channels last */
    bool bare;           /* only products are wanted */
    const struct model_type *model;
    struct layers *of; /* this is a view of; NULL: of none */
    int from, to;      /* of nlayers, the whole model's */
    struct layers_part part;
    cudaStream_t stream;
    cublasLtHandle_t blas;
    cudnnHandle_t dnn;
    int nlayers, oldest; /* plan to go, where there is no room */
    struct layer layers[MODEL_MAX_LAYERS];
    cudnnFilterDescriptor_t filters[MODEL_MAX_LAYERS];
    cudnnConvolutionDescriptor_t convs[MODEL_MAX_LAYERS];
    float *weights; /* borrowed */
    char *narrow;   /* the same in `type`; the same block in fp32 */
    float *buffers;
    float *grads;           /* where those of the batch under way go */
    void *x, *z, *dw;       /* input; a convolution's product and its gradient; a filter's
                               gradient in `type` */
    void *slots[MAX_SLOTS]; /* gradients of activations take turns */
    float *room;            /* for sums */
    void *workspace;
    struct layers_plan *plans[MAX_PLANS];
    int nplans;
    layers_sum_fn sum; /* NULL: every rank's norms are its own */
    void *sum_arg;
    int (*done)(const char *layer, char phase, void *arg, struct ddp_err *err);
    void *done_arg; /* NULL `done`: nobody observes */
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

/* What layer i was given; its gradient, NULL where nobody wants it. */
static inline const void *input_of(const struct layers *net, const struct layer *l)
{
    return l->in < 0 ? net->x : net->layers[l->in].y;
}

static inline void *gradient_of(const struct layers *net, int layer)
{
    return layer < 0 ? NULL : net->slots[net->layers[layer].slot];
}

/* product.c: linear layers */
int linear_plan(const struct layers *net, int i, int n, struct layer_plan *p,
                struct ddp_err *err);
int linear_forward(struct layers *net, int i, const struct layer_plan *p,
                   struct ddp_err *err);
/* `scale` of what dropout left, as in worker/kernels/kernels.h. */
int linear_back(struct layers *net, int i, int n, const struct layer_plan *p, float scale,
                struct ddp_err *err);

/* conv.c */

/* Descriptors of what does not depend on the number of samples, in net->last's order. */
int conv_describe(struct layers *net, int i, struct ddp_err *err);
int conv_plan(const struct layers *net, int i, int n, struct layer_plan *p,
              struct ddp_err *err);
int conv_forward(struct layers *net, int i, int n, const struct layer_plan *p,
                 struct ddp_err *err);
int conv_back(struct layers *net, int i, int n, const struct layer_plan *p, float scale,
              struct ddp_err *err);

void layer_plan_free(struct layer_plan *p);

#endif
