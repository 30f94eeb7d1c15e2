/* worker/cuda/conv_graph.h - a convolution by an engine of cuDNN's graph API
 *
 * It is described by "backend descriptors": tensors, an operation on them, a graph of
 * operations (here always one), an engine for the graph, its configuration with
 * settings (knobs), and a plan to execute it. (NVIDIA cuDNN API reference, "cudnn_graph
 * library"; the attributes are those that its own cudnn-frontend sets.)
 *
 * A configuration that the API rejects is skipped, not reported as an error. Only
 * deterministic engines of the required precision are built. Plans are built outside
 * of capture; executing one may be captured.
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
    bool adds;       /* x's gradient is added to the output */
    int w_alignment; /* bytes: of w or its gradient; the others are aligned to 16 */
};

/* An engine and its settings as text: "g11,2:1,13:4" is engine 11 with knob 2 set to 1
 * and knob 13 to 4. */
enum { CONV_GRAPH_NAME = 192 };

/* Writes up to `most` names that cuDNN's heuristics suggest, best first; returns their
 * number. */
int conv_graph_list(cudnnHandle_t dnn, const struct convolution *shape,
                    char (*names)[CONV_GRAPH_NAME], int most);

struct conv_graph;
/* Returns NULL if it cannot be built, or needs a larger workspace. */
struct conv_graph *conv_graph_build(cudnnHandle_t dnn, const struct convolution *shape,
                                    const char *name, size_t workspace);
void conv_graph_free(struct conv_graph *g); /* NULL is fine */

/* Runs on the handle's stream. Forward writes `y`, backward the gradient of `w` or
 * `x`, which is passed in its place. */
cudnnStatus_t conv_graph_play(const struct conv_graph *g, cudnnHandle_t dnn,
                              const void *x, const void *w, const void *y,
                              void *workspace);

#endif
