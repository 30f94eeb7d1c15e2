/* worker/cuda/conv_graph.h - a convolution by an engine of cuDNN's graph API
 *
 * cuDNN has engines, with settings (knobs), which its older interface does not offer.
 * They are described by "backend descriptors": tensors, an operation on them, a graph of
 * operations (here always one), an engine for the graph, its configuration and a plan to
 * execute it. (NVIDIA cuDNN API reference, "cudnn_graph library"; what its own
 * cudnn-frontend sets is what is set here.)
 *
 * Whatever that API refuses is no offer: nothing here is an error. Only engines are built
 * that give the same bits each time and keep to the precision that was asked for. Plans
 * are built outside of recordings; playing one may be recorded.
 */
#ifndef WORKER_CUDA_CONV_GRAPH_H
#define WORKER_CUDA_CONV_GRAPH_H

#include <cudnn.h>
#include <stdbool.h>
#include <stddef.h>

enum pass { PASS_FORWARD, PASS_WEIGHTS, PASS_INPUTS, PASSES };

/* y[n,K,OH,OW] of x[n,C,H,W] with w[K,C,R,R], or one of the gradients. */
struct convolution {
    enum pass pass;
    cudnnDataType_t type; /* of all three; sums are float */
    bool last;            /* channels, of all three */
    bool tensor_cores;    /* they may round what they multiply: not in plain fp32 */
    int n, C, H, W, K, OH, OW, R, pad, stride;
    bool adds;       /* x's gradient is added to what is there */
    bool as_float;   /* w's gradient is float, [K,C,R,R], whatever the others are */
    int w_alignment; /* bytes: of w, or its gradient; the others lie on 16 */
};

/* An engine and its settings as text: "g11,2:1,13:4", the engine's number, then each
 * knob's and what it is set to. */
enum { CONV_GRAPH_NAME = 192 };

/* Names of up to `most` that cuDNN thinks fit, the best first. */
int conv_graph_list(cudnnHandle_t dnn, const struct convolution *shape,
                    char (*names)[CONV_GRAPH_NAME], int most);

struct conv_graph;
/* NULL: it cannot be had, or not within so many bytes of workspace. */
struct conv_graph *conv_graph_build(cudnnHandle_t dnn, const struct convolution *shape,
                                    const char *name, size_t workspace);
void conv_graph_free(struct conv_graph *g); /* NULL is fine */

/* On the handle's stream; what is written is `y` forward, else the gradient of `w` or
 * `x`, which is given in its place. */
cudnnStatus_t conv_graph_play(const struct conv_graph *g, cudnnHandle_t dnn,
                              const void *x, const void *w, const void *y,
                              void *workspace);

#endif
