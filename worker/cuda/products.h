/* worker/cuda/products.h - matrix products, convolutions and attention, which libraries
 * compute
 *
 * A convolution or linear layer has up to three products: forward, the gradient of its
 * weights and that of its input. conv.c has those of convolutions, product.c those of
 * linear layers; neither depends on the other. Their operands, the buffers of a net, are
 * in layers_impl.h.
 *
 * Each product is computed by an algorithm: the library's first recommendation, or a
 * faster one found by autotune.c. Its place in the library's list names it, also on
 * other ranks and in later runs: the lists of equal devices and libraries are equal.
 */
#ifndef WORKER_CUDA_PRODUCTS_H
#define WORKER_CUDA_PRODUCTS_H

#include "worker/cuda/dnn_graph.h"

#include <cublasLt.h>
#include <stdbool.h>
#include <stddef.h>

enum pass { PASS_FORWARD, PASS_WEIGHTS, PASS_INPUTS, PASSES };

struct layer;
struct layers;
struct resources;

/* As CUDA(). */
#define BLAS(call) blas_note(cuda_failed() ? CUBLAS_STATUS_SUCCESS : (call))
bool blas_note(cublasStatus_t rc);

enum { PRODUCT_KEY = 128 };

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

/* Implemented by conv.c and product.c. */
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

/* A kind of layer; layers_make.c has the table of all. */
struct layer_op {
    const struct products *products; /* NULL: kernels of our own */
    /* Launches a layer for p->n samples, forward or `back`; NULL: of the logits. */
    void (*run)(struct layers *net, const struct layer *l, const struct layer_plan *p,
                bool back);
};
extern const struct layer_op layer_conv, /* conv.c */
    layer_linear,                        /* product.c: dense, too */
    layer_batch_norm, layer_mean,        /* layers.c */
    layer_embed, layer_row_norm, layer_activation, layer_rotary, layer_attention,
    layer_logits; /* seq.c */

/* ---- product.c ---- */

/* One product over the rows of its input from `from` on; `more`: add to the weight's
 * gradient. */
void linear_rows(struct layers *net, const struct layer *l, const struct layer_plan *p,
                 enum pass pass, size_t from, bool more);

/* ---- seq.c: layers of tokens ---- */

/* Makes the logits' layers, and memory for them. */
void seq_make(struct layers *net, struct resources *memory);
/* The number of rows of logits in this layer, for n samples. */
int logits_rows(const struct layers *net, const struct layer *l, int n);

#endif
