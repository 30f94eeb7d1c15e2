/* worker/cuda/conv_graph.h - a convolution by an engine of cuDNN's graph API
 *
 * It is described by "backend descriptors": tensors, an operation on them, a graph of
 * operations (here always one), an engine for the graph, its configuration with
 * settings (knobs), and a plan to execute it. (NVIDIA cuDNN API reference, "cudnn_graph
 * library"; the attributes are those that its own cudnn-frontend sets.)
 *
 * cuDNN's heuristics give a list of configurations, best first; a place in it names one.
 * The list is the same for equal devices and versions of cuDNN. Configurations
 * that the API rejects, that are less precise, or not deterministic where they must be,
 * are skipped; that is no error. Plans are built outside of capture; executing one may be
 * captured.
 */
#ifndef WORKER_CUDA_CONV_GRAPH_H
#define WORKER_CUDA_CONV_GRAPH_H

#include <cudnn.h>
#include <stdbool.h>
#include <stddef.h>

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

struct conv_graph;
/* The convolution with its list of configurations, which is empty if cuDNN rejects it. */
struct conv_graph *conv_graph_make(cudnnHandle_t dnn, const struct convolution *shape);
void conv_graph_free(struct conv_graph *g);

/* The plan of the configuration at this place, owned by `g`: 1; 0 if it cannot be taken,
 * or needs a larger workspace; -1 behind the end of the list. */
int conv_graph_plan(struct conv_graph *g, cudnnHandle_t dnn, int place, size_t workspace,
                    cudnnBackendDescriptor_t *plan);

/* Runs on the handle's stream. Forward writes `y`, backward the gradient of `w` or
 * `x`, which is passed in its place. */
cudnnStatus_t conv_graph_play(cudnnBackendDescriptor_t plan, cudnnHandle_t dnn,
                              const void *x, const void *w, const void *y,
                              void *workspace);

#endif
