/* worker/cuda/layers_impl.h - shared by the files of a net
 *
 * layers_make.c and layers.c make and run the layers; conv.c, product.c and seq.c have
 * their products, which libraries compute: convolutions, matrix products, attention. A
 * layer has up to three: forward, the gradient of its weights and that of its input.
 *
 * Each product is computed by an algorithm: the library's first recommendation, or a
 * faster one found by autotune.c. Its place in the library's list names it, also on
 * other ranks and in later runs: the lists of equal devices and libraries are equal.
 * plan.c has the products of n samples with their algorithms.
 */
#ifndef WORKER_CUDA_LAYERS_IMPL_H
#define WORKER_CUDA_LAYERS_IMPL_H

#include "worker/cuda/dnn_graph.h"
#include "worker/cuda/layers.h"
#include "worker/kernels/rng.h"

#include <cublasLt.h>
#include <stdbool.h>
#include <stddef.h>

/* ---- products ---- */

enum pass { PASS_FORWARD, PASS_WEIGHTS, PASS_INPUTS, PASSES };

/* As CUDA(). */
#define BLAS(call) blas_note(cuda_failed() ? CUBLAS_STATUS_SUCCESS : (call))
bool blas_note(cublasStatus_t rc);

enum { PRODUCT_KEY = 128 };

struct layer;

/* The algorithm at this place in its library's list for a product, best first. */
struct algorithm {
    int place;
    cudnnBackendDescriptor_t plan; /* of cuDNN: the net's; NULL: our kernels */
    cublasLtMatmulAlgo_t blas;     /* of a linear layer */
};

/* What a product's algorithms share. */
struct product {
    struct dnn_graph *graph; /* of a convolution or attention: the net's; or NULL */
    /* D = op(A) op(B), column-major */
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t a, b, d;
};

/* A layer's products of n samples. */
struct layer_plan {
    int n;
    struct product products[PASSES];
    struct algorithm how[PASSES];
};

/* The products of a kind of layer. */
struct products {
    /* Everything that the choice of an algorithm depends on, as text: products with
     * equal texts are the same. */
    void (*key)(const struct layers *net, const struct layer *l, int n, enum pass pass,
                char *text, size_t size);
    /* Fills in p->products[pass], which the caller owns, also after a failure. Not called
     * if there is a graph of this key. */
    void (*describe)(struct layers *net, const struct layer *l, struct layer_plan *p,
                     enum pass pass);
    /* The algorithm at out->place: 1; 0 if it cannot or must not be taken; -1, a failure,
     * behind the end of the list. */
    int (*build)(struct layers *net, const struct layer *l, const struct layer_plan *p,
                 enum pass pass, struct algorithm *out);
    void (*play)(struct layers *net, const struct layer *l, const struct layer_plan *p,
                 enum pass pass);
};

/* ---- layers ---- */

/* Bytes, shared by all layers, which run one after another. */
#define WORKSPACE      (32u << 20)
#define WORKSPACE_MOST ((size_t)64 * WORKSPACE)

/* In a model of tokens the logits are two additional layers: one for the rows computed
 * at a time, one for the remaining rows. */
enum { LOGITS = 2 };

struct layer {
    const struct layer_spec *spec;
    const struct param *weight, *bias; /* NULL: none */
    int in, shortcut;                  /* indices of layers; -1: the batch, none */
    struct map_shape given, wide, map; /* of x; of y before pooling; of y */
    size_t inputs, before, outputs;    /* elements of these, per sample */
    size_t rows;                       /* per sample: tokens; else 1 */
    bool adds, shortcut_adds;          /* as of struct model_op */
    enum cuda_type type;               /* of y */
    void *y;                           /* [max_batch, outputs] */
    uint8_t *arg;                      /* [max_batch, outputs], if it pools */
    float *running;                    /* of a norm, in the buffers */
    float *saved;                      /* of norms, attention, rotary positions */
    double *shared;                    /* of a norm over the ranks */
    int slot;                          /* of y's gradient */
};

struct layers_plan {
    struct layers_plan *next;
    int n;
    bool warm;                  /* all its products have run once */
    struct layer_plan layers[]; /* as a net's */
};

struct layers {
    struct layers_settings settings;
    enum cuda_type type;      /* of activations */
    bool tokens, logits;      /* a model of tokens; and this stage has its logits */
    const struct model *host; /* borrowed: the compiled model */
    struct layers *of;        /* NULL unless this is a view */
    int from, to;             /* of nlayers, the whole model's */
    struct layers_part part;
    cudaStream_t stream;
    cublasLtHandle_t blas;
    cudnnHandle_t dnn;
    int nlayers;
    struct layer *layers; /* owned, [nlayers + LOGITS] */
    float *weights;       /* borrowed */
    char *narrow;         /* weights converted to `type`; the same block in fp32 */
    float *buffers;
    float *grads; /* of the micro-batch in flight */
    void *dq; /* sums of gradients of queries, in float; NULL: deterministic, or fp32 */
    void *x, *z, *dw; /* input; a convolution's product and its gradient; a filter's
                         gradient in `type` */
    /* gradients of activations; the last is the logits' */
    void *slots[MODEL_MAX_SLOTS + 1];
    size_t piece;  /* rows of logits at a time */
    float *losses; /* per token: the loss, and whether it was predicted correctly */
    float *room;   /* for partial sums, and the places of bad numbers */
    void *workspace;
    size_t workspace_bytes;    /* WORKSPACE, or more if a convolution needs it */
    struct layers_plan *plans; /* owned, the latest first; a view uses the owner's */
    char *const *choices;      /* borrowed: layers_choose()'s; NULL: none */
    struct dnn_graph *graphs;  /* owned: as long as the net, captured graphs use them */
    const struct cuda_step *step; /* of this pass, on the device; NULL: a test */
    int batch;                    /* its micro-batch */
};

static inline size_t type_size(enum cuda_type type)
{
    return type == CUDA_F32 ? 4 : 2;
}

/* The alignment of an address at this offset in a block, at most `most`: cudaMalloc()
 * aligns blocks to 256. */
static inline uint32_t aligned_to(size_t bytes, uint32_t most)
{
    size_t lowest = bytes & -bytes;
    return bytes == 0 || lowest > most ? most : (uint32_t)lowest;
}

static inline bool is_conv(const struct layer *l)
{
    return l->spec->kind == LAYER_CONV;
}

/* The offset of a parameter, or of the copy of a tied one, in a block of this stage. */
static inline size_t place_of(const struct layers *net, const struct param *p)
{
    bool tied = p->offset < net->part.offset;
    return tied ? net->part.count : p->offset - net->part.offset;
}

/* A parameter in the type of products. */
static inline void *weights_at(const struct layers *net, const struct param *p)
{
    return net->narrow + place_of(net, p) * type_size(net->type);
}

static inline struct cuda_map map_of(const struct layers *net, struct map_shape s, int n)
{
    return (struct cuda_map){net->type, n, s.C, s.H, s.W};
}

/* Numbers of a head of queries, keys and values. */
static inline int head_size(const struct layer *l)
{
    return l->given.C / (l->spec->size + 2 * l->spec->kv_heads);
}

/* The first layer needs no gradient of its input, attention has no weight. */
static inline bool has_product(const struct layer *l, enum pass pass)
{
    return (pass != PASS_INPUTS || l->in >= 0) && (pass != PASS_WEIGHTS || l->weight);
}

/* One past the last layer that may have products. */
static inline int products_end(const struct layers *net)
{
    return net->to + (net->logits ? LOGITS : 0);
}

/* The layer's input. gradient_of(): of a layer's output; NULL for the batch (-1). */
static inline void *input_of(const struct layers *net, const struct layer *l)
{
    return l->in < 0 ? net->x : net->layers[l->in].y;
}

static inline void *gradient_of(const struct layers *net, int layer)
{
    return layer < 0 ? NULL : net->slots[net->layers[layer].slot];
}

/* A convolution's bias, ReLU and pooling follow its product, whose result and gradient
 * have buffers of their own where the layer's do not do: for the result if it pools. */
static inline void *product_of(const struct layers *net, const struct layer *l)
{
    return is_conv(l) && l->spec->pool ? net->z : l->y;
}

static inline void *product_grad_of(const struct layers *net, const struct layer *l)
{
    return is_conv(l) && !l->spec->bare ? net->z : net->slots[l->slot];
}

/* A layer's parameter, and its gradient; NULL for none. */
static inline float *weights_of(const struct layers *net, const struct param *p)
{
    return p ? net->weights + place_of(net, p) : NULL;
}

static inline float *grads_of(const struct layers *net, const struct param *p)
{
    return p ? net->grads + place_of(net, p) : NULL;
}

/* The factor of gradients in dropout's backward. */
static inline float kept_scale(const struct layers *net, const struct layer *l)
{
    float drop = net->settings.dropout && l->spec->relu ? l->spec->dropout : 0;
    return drop > 0 ? rng_keep_scale(drop) : 1;
}

/* Does dropout follow this layer in this pass? That of attention's weights is in its
 * kernels. */
static inline bool drops(const struct layers *net, const struct layer *l)
{
    return net->step && net->settings.dropout && l->spec->dropout > 0 &&
           l->spec->kind != LAYER_ATTENTION;
}

/* The places that layers_find_bad() looks at. */
static inline size_t layers_places(const struct layers *net)
{
    return 1 + 3 * (size_t)net->nlayers;
}

/* ---- plan.c ---- */

/* The plan for n samples; NULL: a failure. */
struct layers_plan *layers_plan(struct layers *net, int n);

/* Runs each of a plan's products once, with an algorithm that its library accepts. */
void layers_settle(struct layers *net, struct layers_plan *p, float *grads);

/* A product of a plan. */
struct site {
    const struct products *of;
    const struct layer *layer;
    struct layer_plan *plan;
    enum pass pass;
    char key[PRODUCT_KEY];
};

/* Calls `one` for each product of a plan, up to a failure. */
typedef void (*product_fn)(struct layers *net, const struct site *at, void *arg);
void layers_each_product(struct layers *net, struct layers_plan *p, product_fn one,
                         void *arg);
/* Frees all plans of a net that is no view. */
void layers_forget_plans(struct layers *net);

/* ---- the kinds of layers ---- */

typedef void layer_fn(struct layers *net, const struct layer *l,
                      const struct layer_plan *p, bool back);
extern const struct layer_op {
    const struct products *products; /* NULL: kernels of our own */
    /* Launches a layer for p->n samples, forward or `back`; NULL: of the logits, which
     * layers_token_loss() computes. */
    layer_fn *run;
} layer_ops[LAYER_KINDS]; /* layers_make.c */

extern const struct products conv_products, linear_products, attention_products;
layer_fn conv_run, linear_run, batch_norm_run, mean_run, embed_run, row_norm_run,
    activation_run, rotary_run, attention_run;

/* ---- product.c ---- */

/* One product over the rows of its input from `from` on; `more`: add to the weight's
 * gradient. */
void linear_rows(struct layers *net, const struct layer *l, const struct layer_plan *p,
                 enum pass pass, size_t from, bool more);

/* ---- seq.c: layers of tokens ---- */

/* Makes the logits' layers, and memory for them. */
void seq_make(struct layers *net, struct resources *memory);

#endif
