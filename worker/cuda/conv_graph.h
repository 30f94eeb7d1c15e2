/* worker/cuda/conv_graph.h - a convolution by an engine of cuDNN (dnn_graph.h) */
#ifndef WORKER_CUDA_CONV_GRAPH_H
#define WORKER_CUDA_CONV_GRAPH_H

#include "worker/cuda/dnn_graph.h"

enum pass { PASS_FORWARD, PASS_WEIGHTS, PASS_INPUTS, PASSES };

/* y[n,OH,OW,K] of x[n,H,W,C] with w[K,R,R,C], or one of the gradients. */
struct convolution {
    enum pass pass;
    cudnnDataType_t type; /* of all three; sums are float */
    bool tensor_cores;    /* operands may be rounded; false in plain fp32 */
    int n, C, H, W, K, OH, OW, R, pad, stride;
    bool deterministic; /* no engine whose results vary from run to run */
    bool adds;          /* x's gradient is added to the output */
    int w_alignment;    /* bytes: of w or its gradient; the others are aligned to 16 */
};

/* The convolution with its list of configurations. */
struct dnn_graph *conv_graph_make(cudnnHandle_t dnn, const struct convolution *shape);

/* Runs on the handle's stream. Forward writes `y`, backward the gradient of `w` or
 * `x`, which is passed in its place. */
cudnnStatus_t conv_graph_play(cudnnBackendDescriptor_t plan, cudnnHandle_t dnn,
                              const void *x, const void *w, const void *y,
                              void *workspace);

#endif
