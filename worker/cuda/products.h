/* worker/cuda/products.h - what the layers leave to libraries: products
 *
 * A convolution or linear layer has up to three: forward, and back to the gradients of
 * its weights and of its inputs. conv.c has those of convolutions, product.c those of
 * linear layers; neither calls a layer back, nor knows the other. What they work on, the
 * buffers of a net, is in layers_impl.h.
 *
 * Each product is computed by an algorithm: at first by the one that its library thinks
 * best, or by another that autotune.c has found to be faster. An algorithm has a name,
 * which any rank, or a later run, can build it from:
 *
 *     a1            cuDNN's older interface, algorithm 1
 *     g11,2:1       cuDNN's graph API: conv_graph.h
 *     w11,2:1       the same, a filter's gradient in float and in the model's order
 *     b1f00...      cuBLASLt: the words of its cublasLtMatmulAlgo_t
 */
#ifndef WORKER_CUDA_PRODUCTS_H
#define WORKER_CUDA_PRODUCTS_H

#include "worker/cuda/conv_graph.h"
#include "worker/cuda/cuda_error.h"
#include "worker/cuda/kernels.h"

#include <stdbool.h>
#include <stddef.h>

struct layer;
struct layers;
struct device_memory;

enum { ALGORITHM_NAME = CONV_GRAPH_NAME, MOST_USUAL = 8 };

/* What plays a product. */
struct algorithm {
    enum { ALGORITHM_NUMBER, ALGORITHM_GRAPH, ALGORITHM_BLAS } kind;
    int number;
    cudnnMathType_t math;     /* of a number: the two are recommended together */
    struct conv_graph *graph; /* not freed with it */
    bool as_float;            /* a filter's gradient is float already */
    cublasLtMatmulAlgo_t blas;
};

/* D = op(A) op(B), column-major. */
struct product {
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t a, b, d;
};

/* A layer's products of n samples. */
struct layer_plan {
    int n;
    struct product products[PASSES]; /* linear */
    cudnnTensorDescriptor_t x, z;    /* a convolution */
    struct algorithm how[PASSES];
};

/* What a product reads beside the weights, and writes. Elements, not bytes. What filters'
 * gradients need to become float counts as a part of theirs. */
struct operands {
    struct {
        void *at; /* NULL: there is no more */
        size_t n;
        enum cuda_type type;
    } in[2], out;
    bool adds; /* to what is there */
};

/* Conv.c's and product.c's. `i`: a layer of the net. */
struct products {
    /* Descriptors, and the algorithms that the libraries think best. What a plan has is
     * freed by the caller, also after an error. */
    int (*plan)(const struct layers *net, int i, int n, struct layer_plan *p,
                struct ddp_err *err);
    /* Those, the best first: how many, at least one; or -1. */
    int (*usual)(const struct layers *net, int i, const struct layer_plan *p,
                 enum pass pass, struct algorithm out[MOST_USUAL], struct ddp_err *err);
    /* Does the layer have this one? The first one needs no gradient of its input. */
    bool (*has)(const struct layers *net, int i, enum pass pass);
    int (*play)(struct layers *net, int i, const struct layer_plan *p, enum pass pass,
                const struct algorithm *how, struct ddp_err *err);

    /* For autotune.c. Names of up to `most` algorithms beside p->how. */
    int (*list)(const struct layers *net, int i, const struct layer_plan *p,
                enum pass pass, char (*names)[ALGORITHM_NAME], int most);
    /* False: this library, on this device, has none of that name for it, or none that
     * gives the same bits each time in our workspace. */
    bool (*build)(const struct layers *net, int i, const struct layer_plan *p,
                  enum pass pass, const char *name, struct algorithm *out);
    /* All that an algorithm depends on, as text: products of one text are the same. */
    void (*key)(const struct layers *net, int i, const struct layer_plan *p,
                enum pass pass, char *text, size_t size);
    void (*operands)(const struct layers *net, int i, int n, enum pass pass,
                     struct operands *out);
};

/* A kind of layer; layers_make.c has the table of all. */
struct layer_op {
    const struct products *products; /* NULL: kernels of our own */
    int (*forward)(struct layers *net, int i, const struct layer_plan *p, bool learn,
                   struct ddp_err *err);
    /* `scale` of what dropout left, as in worker/kernels/kernels.h. */
    int (*back)(struct layers *net, int i, const struct layer_plan *p, float scale,
                struct ddp_err *err);
};
extern const struct layer_op layer_conv, /* conv.c */
    layer_linear,                        /* product.c: dense, too */
    layer_batch_norm, layer_mean,        /* layers.c */
    layer_tokens;                        /* seq.c */

/* ---- conv.c ---- */

/* Descriptors of what does not depend on the number of samples, in net->last's order. */
int conv_describe(struct layers *net, int i, struct ddp_err *err);

/* ---- product.c ---- */

/* One product of the rows from `from` on of its input; with `more` the weight's gradient
 * is added to what is there. */
int linear_rows(struct layers *net, int i, const struct layer_plan *p, enum pass pass,
                const struct algorithm *how, size_t from, bool more, struct ddp_err *err);

/* ---- seq.c: layers of tokens ---- */

/* The logits' layers, and memory for them. */
int seq_make(struct layers *net, struct device_memory *memory, struct ddp_err *err);
/* Rows of the logits that layer i has, of n samples. */
int logits_rows(const struct layers *net, int i, int n);

#endif
