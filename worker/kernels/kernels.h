/* worker/kernels/kernels.h - the arithmetic of the models, on contiguous float32 arrays
 *
 * Shapes: B batch, C channels, H W height and width, K output channels or features.
 * Images are NCHW. Every kernel is a function of its arguments alone. The table lets
 * tests hold a fast engine against the plain one, and a machine choose at run time.
 *
 * Gradients: kernels overwrite what they write (d-input, and d-weight too), unless the
 * comment says accumulate.
 */
#ifndef WORKER_KERNELS_KERNELS_H
#define WORKER_KERNELS_KERNELS_H

#include "include/ddprun/err.h"

#include <stdbool.h>
#include <stdint.h>

/* A valid (unpadded), stride-1 convolution: x[B,C,H,W], w[K,C,R,R], bias[K] ->
 * y[B,K,H-R+1,W-R+1]. An engine may keep prepared state behind `plan`. */
struct conv_shape {
    int B, C, H, W, K, R;
};
struct conv_plan; /* made per layer by the engine; owns its scratch memory */

struct kernels {
    const char *name; /* "plain", "openblas", "onednn", ... */

    /* y[B,K] = x[B,C] w[K,C]^T + bias[K], then max(0, y) when `relu` */
    void (*linear)(const float *x, const float *w, const float *bias, float *y, int B,
                   int C, int K, bool relu);
    /* dw[K,C] = dy^T x, dbias[K] = column sums of dy, dx[B,C] = dy w (dx may be NULL) */
    void (*linear_back)(const float *x, const float *w, const float *dy, float *dw,
                        float *dbias, float *dx, int B, int C, int K);

    struct conv_plan *(*conv_plan)(struct conv_shape shape, struct ddp_err *err);
    void (*conv_plan_free)(struct conv_plan *p);
    /* y = conv(x, w) + bias, then max(0, y) when `relu` */
    void (*conv)(struct conv_plan *p, const float *x, const float *w, const float *bias,
                 float *y, bool relu);
    /* dw, dbias, and dx unless NULL */
    void (*conv_back)(struct conv_plan *p, const float *x, const float *w,
                      const float *dy, float *dw, float *dbias, float *dx);

    /* 2x2 max-pool, stride 2, floor: y[B,C,H/2,W/2]; `arg` remembers which of the four */
    void (*maxpool)(const float *x, float *y, uint8_t *arg, int B, int C, int H, int W);
    void (*maxpool_back)(const float *dy, const uint8_t *arg, float *dx, int B, int C,
                         int H, int W);

    /* dx = dy where y > 0, else 0; dx may be dy */
    void (*relu_back)(const float *y, const float *dy, float *dx, int64_t n);
    /* y = x * mask / (1-p), mask from the counter-based generator at (seed, offset) */
    void (*dropout)(const float *x, float *y, int64_t n, float p, uint64_t seed,
                    uint64_t offset);
    void (*dropout_back)(const float *dy, float *dx, int64_t n, float p, uint64_t seed,
                         uint64_t offset);

    /* mean over the batch of -log softmax(logits[B,K])[label]; dlogits is its gradient
     * times `scale`/B; *correct counts argmax == label. dlogits may be NULL. */
    float (*softmax_loss)(const float *logits, const uint8_t *labels, float *dlogits,
                          int B, int K, float scale, int *correct);
    /* mean over B*K of (y - t)^2; dy its gradient */
    float (*mse_loss)(const float *y, const float *t, float *dy, int B, int K);

    /* Optimiser steps over the whole parameter block of n floats. */
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
/* Names of the engines in this build, NULL-terminated. */
const char *const *kernels_names(void);
/* How many threads the engines may use; the trainer passes the rank's CPUs. */
void kernels_set_threads(int n);

#endif
