/* worker/kernels/kernels.h - the arithmetic of the models, on contiguous float32 arrays
 *
 * Weights, gradients of weights, and what a linear layer or the last convolution gives
 * out are float32 with every engine. Images between convolutions lie as the engine likes
 * them best, and in its own type: an engine of precision bf16 keeps them in bfloat16, and
 * rounds weights and inputs to it when it multiplies; its sums are float32.
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

/* A convolution x[n,C,H,W], w[K,C,R,R], bias[K], ReLU, and a 2x2 max-pool with stride 2
 * (floor) when `pool`:
 *     y[n,K,OH,OW]  or  y[n,K,OH/2,OW/2],  OH = (H + 2 pad - R) / stride + 1.
 * `first`: x is NCHW and no gradient of it is wanted. `last`: y is NCHW. Between the
 * first and the last of a chain, images lie as the engine likes them best, and x is
 * taken to be the y of another such layer, so that dx comes masked with x > 0.
 * `bare`: no bias, no ReLU and no mask: norm layers stand between these. pad < R; a layer
 * with pooling has neither stride nor padding. */
struct conv_shape {
    int B, C, H, W, K, R;
    int stride, pad; /* stride 0 is 1 */
    bool pool, first, last, bare;
    bool adds; /* dx is added to what is there: x goes elsewhere, too */
};

/* y = relu(w (x - mean) / sqrt(var + eps) + bias + shortcut), per channel: `relu` and the
 * shortcut (NULL) may be missing. mean and var (of n, not n-1) are those of the batch
 * over n, H, W; `learn` moves `running`, C means and then C variances (of n-1), towards
 * them by `momentum`; those of a channel with a bad number are left as they are, so that
 * a step that is skipped does not spoil all tests after it. Without `learn`, the running
 * ones are used. Images in the engine's layout. */
struct norm_shape {
    int B, C, H, W;
    bool relu;
    float eps, momentum;
};

/* Adds up v[0..n) over all who normalise together, in place; called by each of them the
 * same number of times. */
typedef void (*norm_sum_fn)(double *v, size_t n, void *arg);

struct map_shape {
    int C, H, W;
};

/* c[M,N] = a[M,K] b[K,N] + bias[N] (NULL: none), or with `add` more by it. a's element
 * (i, j) lies at a[i * ra + j * ca], b's at b[i * rb + j * cb]; one of each pair is 1. */
struct gemm {
    int M, N, K;
    const float *a, *b, *bias;
    size_t ra, ca, rb, cb;
    float *c;
    size_t ldc;
    bool add;
};

/* Causal self-attention of T tokens: qkv[n,T,3,heads,D] to y[n,T,heads,D]. */
struct attention_shape {
    int T, heads, D;
};

struct linear_plan; /* made per layer by the engine; own their scratch memory */
struct conv_plan;
struct norm_plan;

/* The last two are a GPU's: fp32 with products of 10 bits, and fp16 with a scaled loss.
 */
enum precision { PRECISION_FP32, PRECISION_BF16, PRECISION_TF32, PRECISION_FP16 };
extern const char *const precision_names[]; /* "fp32", "bf16", ..., NULL */

enum { KERNELS_GRAIN = 4096 }; /* below that waking another thread costs more */

struct kernels {
    const char *name;
    enum precision precision;
    const char *arithmetic; /* what multiplies, for people to read */

    struct linear_plan *(*linear_plan)(struct linear_shape shape, struct ddp_err *err);
    void (*linear_plan_free)(struct linear_plan *p);
    void (*linear)(struct linear_plan *p, int n, const float *x, const float *w,
                   const float *bias, float *y);
    /* With g = dy * scale (where y > 0, else 0, when `relu`):
     * dw[K,C] = g^T x, dbias[K] = column sums of g, dx[n,C] = g w (dx may be NULL). */
    void (*linear_back)(struct linear_plan *p, int n, const float *x, const float *w,
                        const float *y, const float *dy, float scale, float *dw,
                        float *dbias, float *dx);
    /* dw is a product of two matrices, g and x, which are small beside it while the batch
     * is small beside K and C. Ranks can therefore give each other these factors instead
     * of their dw, and each make some rows of the sum: in all as many multiplications.
     * Floats of the factors of a batch, in the engine's own layout, on a cache line: */
    size_t (*linear_factors)(const struct linear_plan *p);
    /* as linear_back, but leaves the factors and makes no dw; n may be 0; */
    void (*linear_back_factors)(struct linear_plan *p, int n, const float *x,
                                const float *w, const float *y, const float *dy,
                                float scale, float *factors, float *dbias, float *dx);
    /* rows [from, to) of dw, which begins with the first of them: what linear_back makes
     * of each batch, added up in this order. By the calling thread, so that several may
     * call at once. The factors are only read. */
    void (*linear_rows)(const struct linear_plan *p, float *const *factors, int batches,
                        int from, int to, float *dw);

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

    struct norm_plan *(*norm_plan)(struct norm_shape shape, struct ddp_err *err);
    void (*norm_plan_free)(struct norm_plan *p);
    /* From now on mean and var, and the gradients that go through them, are those of all
     * batches of a `learn`ing pass together, with one sum forward and one back. n may be
     * 0 then, and no batch larger than the plan's: a rank that has nothing takes part. dw
     * and dbias stay those of its own samples. */
    void (*norm_share)(struct norm_plan *p, norm_sum_fn sum, void *arg);
    void (*norm)(struct norm_plan *p, int n, const float *x, const float *w,
                 const float *bias, float *running, bool learn, const float *shortcut,
                 float *y);
    /* To follow norm() with `learn` on the same x. dshortcut may be NULL. */
    void (*norm_back)(struct norm_plan *p, int n, const float *x, const float *w,
                      const float *y, const float *dy, float *dw, float *dbias, float *dx,
                      float *dshortcut);
    /* Mean over H, W of images in the engine's layout: y[n,C], plain. */
    void (*mean)(struct map_shape shape, int n, const float *x, float *y);
    void (*mean_back)(struct map_shape shape, int n, const float *dy, float *dx);
    /* Floats of one image in the engine's layout. */
    size_t (*map_floats)(struct map_shape shape);

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

    /* Along plain blocks, here and below: up to KERNELS_GRAIN floats are the calling
     * thread's, so that several may call at once. Sums of squares do not depend on the
     * number of threads. */
    void (*add)(float *to, const float *from, int64_t n);
    void (*scale)(float *v, int64_t n, float by);
    double (*sum_squares)(const float *v, int64_t n);
    /* Is every number of `floats` floats, of images in the engine's own layout when
     * `image`, finite? */
    bool (*finite)(const float *v, size_t floats, bool image);

    /* ---- sequences: rows of floats, one a token; in fp32 with every engine, but for
     * gemm, which rounds what it multiplies to the engine's precision. `room` is of as
     * many floats as the function beside it says, for the threads that there are ---- */
    size_t (*gemm_room)(void);
    void (*gemm)(const struct gemm *g, float *room);
    /* y = w (x - mean) / sqrt(var + 1e-5) + bias, of each of n rows of C; kept[n,2] is
     * for going back, where dx becomes more by its gradient with `add` */
    void (*layer_norm)(int n, int C, const float *x, const float *w, const float *bias,
                       float *y, float *kept);
    void (*layer_norm_back)(int n, int C, const float *x, const float *w,
                            const float *kept, const float *dy, float *dw, float *dbias,
                            float *dx, bool add);
    void (*column_sums)(int n, int C, const float *dy, float *sums);
    /* PyTorch's approximate='tanh'; n < 2^31 */
    void (*gelu)(int64_t n, const float *x, float *y);
    void (*gelu_back)(int64_t n, const float *x, const float *dy, float *dx);
    /* lse[n,heads,T] is for going back: it keeps the weights' sums, not the weights. */
    size_t (*attention_room)(struct attention_shape s);
    void (*attention)(struct attention_shape s, int n, const float *qkv, float *y,
                      float *lse, float *room);
    void (*attention_back)(struct attention_shape s, int n, const float *qkv,
                           const float *y, const float *lse, const float *dy, float *dqkv,
                           float *room);
    /* found[n,2]: -log softmax(logits[n,V])[label], and 1 where the label is the most
     * likely; logits become the gradient of the losses' sum times `scale`, 0: they do
     * not. */
    void (*token_loss)(int n, int V, float *logits, const uint32_t *labels, float scale,
                       double *found);

    /* One optimiser step over n floats, with PyTorch's formulas: `decay` is the L2
     * penalty (weight_decay); the state blocks m, v, sq, acc start at zero; `step`
     * counts from 1. m may be NULL when momentum is 0. adam: w is first multiplied by
     * `keep` (AdamW's 1 - lr * weight_decay). */
    void (*sgd)(float *w, const float *g, float *m, int64_t n, float lr, float momentum,
                float decay);
    void (*adam)(float *w, const float *g, float *m, float *v, int64_t n, float lr,
                 float b1, float b2, float eps, float decay, float keep, int64_t step);
    void (*adadelta)(float *w, const float *g, float *sq, float *acc, int64_t n, float lr,
                     float rho, float eps, float decay);
};

extern const struct kernels kernels_plain; /* the reference: naive loops */

/* The fastest fp32 engine that this build and this CPU have, or the one called `name`. */
const struct kernels *kernels_get(const char *name, struct ddp_err *err);
/* The same of a given precision; of fp32 for a GPU's. */
const struct kernels *kernels_get_at(const char *name, enum precision precision,
                                     struct ddp_err *err);
/* Names of the engines that this build and this CPU have, fastest first; NULL-terminated.
 */
const char *const *kernels_names(void);
/* How many threads the engines may use when the calling thread calls them, 1 until told;
 * the trainer passes the rank's CPUs. A plan has scratch memory for the number that
 * was set when it was made: do not use it with more. */
void kernels_set_threads(int n);

#endif
