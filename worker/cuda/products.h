/* worker/cuda/products.h - matrix products and convolutions, which libraries compute
 *
 * A convolution or linear layer has up to three products: forward, the gradient of its
 * weights and that of its input. conv.c has those of convolutions, product.c those of
 * linear layers; neither depends on the other. Their operands, the buffers of a net, are
 * in layers_impl.h.
 *
 * Each product is computed by an algorithm: the library's first recommendation, or a
 * faster one found by autotune.c. An algorithm has a name, from which any rank, or a
 * later run, can build it:
 *
 *     g11,2:1       cuDNN's graph API: conv_graph.h
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

enum { ALGORITHM_NAME = CONV_GRAPH_NAME, PRODUCT_KEY = 128 };

/* An algorithm. */
struct algorithm {
    const struct conv_graph *graph; /* of a convolution: the net's */
    cublasLtMatmulAlgo_t blas;      /* of a linear layer */
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
    struct algorithm how[PASSES];
};

/* The operands of a product beside the weights, and its output. Counts are elements,
 * not bytes. Converting a filter's gradient to float counts as part of the product. */
struct operands {
    struct {
        void *at; /* NULL: only one */
        size_t n;
        enum cuda_type type;
    } in[2], out;
    bool adds; /* the output is added to */
};

/* Implemented by conv.c and product.c. `i`: a layer of the net. */
struct products {
    /* Makes descriptors, and takes the libraries' first recommendations. The caller
     * frees what is in the plan, also after an error. */
    int (*plan)(struct layers *net, int i, int n, struct layer_plan *p,
                struct ddp_err *err);
    /* The next recommendation, best first; *at is 0 at first. -1: there is none. */
    int (*usual)(struct layers *net, int i, const struct layer_plan *p, enum pass pass,
                 int *at, struct algorithm *out, struct ddp_err *err);
    /* Does the layer have this product? The first layer needs no gradient of its
     * input. */
    bool (*has)(const struct layers *net, int i, enum pass pass);
    int (*play)(struct layers *net, int i, const struct layer_plan *p, enum pass pass,
                const struct algorithm *how, struct ddp_err *err);

    /* For autotune.c: names of up to `most` algorithms other than p->how. */
    int (*list)(struct layers *net, int i, const struct layer_plan *p, enum pass pass,
                char (*names)[ALGORITHM_NAME], int most);
    /* Returns false if the library has no algorithm of that name for this product on
     * this device, or none that is deterministic within the workspace. */
    bool (*build)(struct layers *net, int i, const struct layer_plan *p, enum pass pass,
                  const char *name, struct algorithm *out);
    /* Everything that the choice of an algorithm depends on, as text: products with
     * equal texts are the same. */
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
    /* `scale`: of the elements kept by dropout, as in worker/kernels/kernels.h. */
    int (*back)(struct layers *net, int i, const struct layer_plan *p, float scale,
                struct ddp_err *err);
};
extern const struct layer_op layer_conv, /* conv.c */
    layer_linear,                        /* product.c: dense, too */
    layer_batch_norm, layer_mean,        /* layers.c */
    layer_tokens;                        /* seq.c */

/* ---- conv.c ---- */

/* Frees the plans that were built for a net. */
void conv_forget(struct layers *net);

/* ---- product.c ---- */

/* One product over the rows of its input from `from` on; `more`: add to the weight's
 * gradient. */
int linear_rows(struct layers *net, int i, const struct layer_plan *p, enum pass pass,
                const struct algorithm *how, size_t from, bool more, struct ddp_err *err);

/* ---- seq.c: layers of tokens ---- */

/* Makes the logits' layers, and memory for them. */
int seq_make(struct layers *net, struct device_memory *memory, struct ddp_err *err);
/* The number of rows of logits in layer i, for n samples. */
int logits_rows(const struct layers *net, int i, int n);

#endif
