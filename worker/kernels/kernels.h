/* worker/kernels/kernels.h - the arithmetic of the models, on contiguous float32 arrays
 *
 * Shapes: B batch, C channels or inputs, H W height and width, K output channels or
 * features. A table of functions is an engine: "plain" is naive loops, the truth of the
 * tests; the others are one source compiled for several instruction sets (vector.c), and
 * the machine chooses at run time.
 *
 * A layer is planned once, for up to `B` samples; the plan owns the scratch memory, so
 * that a step allocates nothing. Layers include the ReLU and the pooling that follow
 * them: most of what a small network loses beside its arithmetic is passes over memory
 * between layers.
 *
 * Gradients: kernels overwrite what they write. `dy` is the gradient of what the layer
 * gave out, after ReLU and pooling (and dropout, see there); the layer masks it itself.
 */
#ifndef WORKER_KERNELS_KERNELS_H
#define WORKER_KERNELS_KERNELS_H

#include "include/ddprun/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* y[n,K] = x[n,C] w[K,C]^T + bias[K], then max(0, y) when `relu`. */
struct linear_shape {
    int B, C, K;
    bool relu;
};

/* A valid (unpadded), stride-1 convolution x[n,C,H,W], w[K,C,R,R], bias[K], ReLU, and a
 * 2x2 max-pool with stride 2 (floor) when `pool`:
 *     y[n,K,H-R+1,W-R+1]  or  y[n,K,(H-R+1)/2,(W-R+1)/2].
 * `first`: x is NCHW and no gradient of it is wanted. `last`: y is NCHW. Between the
 * first and the last of a chain, images lie as the engine likes them best, and x is
 * taken to be the y of another such layer, so that dx comes masked with x > 0. */
struct conv_shape {
    int B, C, H, W, K, R;
    bool pool, first, last;
};

struct linear_plan; /* made per layer by the engine; own their scratch memory */
struct conv_plan;

struct kernels {
    const char *name;

    struct linear_plan *(*linear_plan)(struct linear_shape shape, struct ddp_err *err);
    void (*linear_plan_free)(struct linear_plan *p);
    void (*linear)(struct linear_plan *p, int n, const float *x, const float *w,
                   const float *bias, float *y);
    /* With g = dy * scale (where y > 0, else 0, when `relu`):
     * dw[K,C] = g^T x, dbias[K] = column sums of g, dx[n,C] = g w (dx may be NULL). */
    void (*linear_back)(struct linear_plan *p, int n, const float *x, const float *w,
                        const float *y, const float *dy, float scale, float *dw,
                        float *dbias, float *dx);

    struct conv_plan *(*conv_plan)(struct conv_shape shape, struct ddp_err *err);
    void (*conv_plan_free)(struct conv_plan *p);
    /* Floats of one image of y, in the layout it is given out in. */
    size_t (*conv_floats)(const struct conv_plan *p);
    void (*conv)(struct conv_plan *p, int n, const float *x, const float *w,
                 const float *bias, float *y);
    /* As linear_back; to follow conv() on the same x. dx is NULL in a first layer. */
    void (*conv_back)(struct conv_plan *p, int n, const float *x, const float *w,
                      const float *y, const float *dy, float scale, float *dw,
                      float *dbias, float *dx);

    /* y = y * mask / (1-p) in place, the mask drawn from (seed, stream) as rng.h says; y
     * is the output of a layer with ReLU. Going back needs no mask: what was dropped is 0
     * in y as what ReLU cut is, so the layer's own mask with scale 1/(1-p) is both. */
    void (*dropout)(float *y, int64_t n, float p, uint64_t seed, uint64_t stream);

    /* Mean over the batch of -log softmax(logits[n,K])[label]; dlogits is its gradient
     * times `scale`; *correct counts argmax == label. dlogits may be NULL. */
    float (*softmax_loss)(const float *logits, const uint8_t *labels, float *dlogits,
                          int n, int K, float scale, int *correct);
    /* Mean over n*K of (y - t)^2; dy is its gradient times `scale`, or NULL. */
    float (*mse_loss)(const float *y, const float *t, float *dy, int n, int K,
                      float scale);

    /* One optimiser step over n floats, with PyTorch's formulas: `decay` is the L2
     * penalty (weight_decay); the state blocks m, v, sq, acc start at zero; `step`
     * counts from 1. m may be NULL when momentum is 0. */
    void (*sgd)(float *w, const float *g, float *m, int64_t n, float lr, float momentum,
                float decay);
    void (*adam)(float *w, const float *g, float *m, float *v, int64_t n, float lr,
                 float b1, float b2, float eps, float decay, int64_t step);
    void (*adadelta)(float *w, const float *g, float *sq, float *acc, int64_t n, float lr,
                     float rho, float eps, float decay);
};

extern const struct kernels kernels_plain; /* the reference: naive loops */

/* The fastest engine that this build and this CPU have, or the one called `name`. */
const struct kernels *kernels_get(const char *name, struct ddp_err *err);
/* Names of the engines that this build and this CPU have, fastest first; NULL-terminated.
 */
const char *const *kernels_names(void);
/* How many threads the engines may use, 1 until told; the trainer passes the rank's
 * CPUs. Before layers are planned: a plan has scratch memory for so many. */
void kernels_set_threads(int n);

#endif
