/* worker/kernels/kernels.h - the arithmetic of the models, on contiguous float32
 * arrays
 *
 * Weights, gradients of weights, and the outputs of linear layers and of the last
 * convolution are float32 with every engine. Images between convolutions have the
 * engine's own layout and type: an engine of precision bf16 stores them in bfloat16,
 * and rounds weights and inputs to it for multiplication; its sums are float32.
 *
 * Shapes: B batch, C channels or inputs, H W height and width, K output channels or
 * features. An engine is a table of functions: one source compiled for several
 * instruction sets (vector.c), chosen at run time. tests/worker/kernels/plain.c has the
 * reference, naive loops.
 *
 * A layer is planned once, for up to `B` samples: the plan and its scratch memory are
 * put in the caller's list, so that a step allocates nothing. Layers include the ReLU and
 * the pooling that follow them, since extra passes over memory are the main cost of a
 * small network beside its arithmetic.
 *
 * Gradients: kernels overwrite their outputs. `dy` is the gradient of the layer's
 * output, after ReLU and pooling; the layer applies the mask itself.
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

/* A convolution x[n,C,H,W], w[K,C,R,R], bias[K], ReLU, and a 2x2 max-pool with stride
 * 2 (floor) if `pool`:
 *     y[n,K,OH,OW]  or  y[n,K,OH/2,OW/2],  OH = (H + 2 pad - R) / stride + 1.
 * `first`: x is NCHW and its gradient is not computed. `last`: y is NCHW. Between the
 * first and the last of a chain images have the engine's own layout, and x is assumed
 * to be the y of another such layer, so that dx is masked with x > 0. `bare`: no bias,
 * no ReLU and no mask, for layers followed by a norm. pad < R; a layer with pooling
 * has neither stride nor padding. */
struct conv_shape {
    int B, C, H, W, K, R;
    int stride, pad; /* stride 0 means 1 */
    bool pool, first, last, bare;
    bool adds; /* dx is added to its buffer: x is used elsewhere, too */
};

/* y = relu(w (x - mean) / sqrt(var + eps) + bias + shortcut), per channel; `relu` and
 * the shortcut (NULL) are optional. With `learn`, mean and var (of n, not n-1) are the
 * batch's over n, H, W, and `running`, C means and then C variances (of n-1), moves
 * towards them by `momentum`, except in channels that are not finite, so that a
 * skipped step does not spoil later tests. Without `learn`, mean and var are the
 * running ones. Images in the engine's layout. */
struct norm_shape {
    int B, C, H, W;
    bool relu;
    float eps, momentum;
};

/* Sums v[0..n) over all ranks that normalise together, in place; each calls it the
 * same number of times. */
typedef void (*norm_sum_fn)(double *v, size_t n, void *arg);

struct map_shape {
    int C, H, W;
};

/* Element (i, j) is at[i * row + j * column]; one of the two is 1. */
struct matrix {
    const float *at;
    size_t row, column;
};

static inline struct matrix matrix(const float *at, size_t ld)
{
    return (struct matrix){at, ld, 1};
}

static inline struct matrix transposed(const float *at, size_t ld)
{
    return (struct matrix){at, 1, ld};
}

/* c[M,N] = a[M,K] b[K,N] + bias[N] (NULL: none); with `add`, added to c, whose rows are
 * `ldc` floats apart. */
struct gemm {
    int M, N, K;
    struct matrix a, b;
    const float *bias;
    float *c;
    size_t ldc;
    bool add;
};

/* y = w (x - mean) / sqrt(var + eps) + bias (NULL: none), for each row of C; `rms`: with
 * a mean of 0. */
struct row_norm {
    int C;
    bool rms;
    float eps;
    const float *w, *bias;
};

/* y = f(x) = x / (1 + exp(-u)), u = linear x + cubic x^3, in rows of C; `gated`: y is
 * f(x) times z, for rows of x and z. GELU is PyTorch's approximate='tanh'. */
struct activation {
    float linear, cubic;
    int C;
    bool gated;
};

/* Causal self-attention over T tokens: qkv[n,T,heads + 2 kv_heads,D] to y[n,T,heads,D].
 * heads / kv_heads queries in turn share keys and values. Weights are dropped with
 * probability `dropout`, those of a row (sample, head, query) as dropout() does with
 * the key rng_word(key, row). */
struct attention_shape {
    int from; /* the first query, of one sample, that is computed; 0 in training */
    int T, heads, kv_heads, D;
    float dropout;
    uint64_t key;
};

/* One optimiser step over n floats, with PyTorch's formulas. The states m and v start at
 * zero: sgd's momentum (NULL: none), adam's moments, adadelta's means of the squares of
 * gradients and of steps. */
enum optim_rule { RULE_SGD, RULE_ADAM, RULE_ADADELTA };
struct update {
    enum optim_rule rule;
    float *w, *m, *v;
    const float *g;
    int64_t n;
    float lr;
    float decay;       /* the L2 penalty (weight_decay) */
    float b1, b2, eps; /* b1: sgd's momentum, adadelta's rho */
    float keep;        /* adam: w is first multiplied by it (AdamW's 1 - lr * decay) */
    int64_t step;      /* adam: from 1 on */
};

struct scratches;   /* worker/kernels/scratch.h */
struct linear_plan; /* made per layer by the engine, in `memory` */
struct conv_plan;
struct norm_plan;

/* The last two are for GPUs: fp32 with products of 10 bits, and fp16 with loss
 * scaling. */
enum precision { PRECISION_FP32, PRECISION_BF16, PRECISION_TF32, PRECISION_FP16 };
extern const char *const precision_names[]; /* "fp32", "bf16", ..., NULL */

enum { KERNELS_GRAIN = 4096 }; /* smaller arrays are not worth waking another thread */

struct kernels {
    const char *name;
    enum precision precision;
    const char *arithmetic; /* description for the user */

    struct linear_plan *(*linear_plan)(struct linear_shape shape,
                                       struct scratches *memory);
    void (*linear)(struct linear_plan *p, int n, const float *x, const float *w,
                   const float *bias, float *y);
    /* With g = dy (where y > 0, else 0, when `relu`):
     * dw[K,C] = g^T x, dbias[K] = column sums of g, dx[n,C] = g w (dx may be NULL). */
    void (*linear_back)(struct linear_plan *p, int n, const float *x, const float *w,
                        const float *y, const float *dy, float *dw, float *factors,
                        float *dbias, float *dx);
    /* dw is the product of two matrices, g and x, which are small compared to it while
     * the batch is small compared to K and C. So ranks can exchange these factors in
     * place of dw, and each compute some rows of the sum, with the same number of
     * multiplications in all. linear_back() stores `factors` and computes no dw, unless
     * they are NULL; n may then be 0. Floats of the factors of a batch, in the engine's
     * own layout, aligned to cache lines: */
    size_t (*linear_factors)(const struct linear_plan *p);
    /* rows [from, to) of dw, stored from the start of dw: the sum of linear_back's
     * results for each batch, in order. Runs in the calling thread, so several may
     * call it at once. The factors are read only. */
    void (*linear_rows)(const struct linear_plan *p, float *const *factors, int batches,
                        int from, int to, float *dw);

    struct conv_plan *(*conv_plan)(struct conv_shape shape, struct scratches *memory);
    /* Floats of one image of y, in its output layout. */
    size_t (*conv_floats)(const struct conv_plan *p);
    void (*conv)(struct conv_plan *p, int n, const float *x, const float *w,
                 const float *bias, float *y);
    /* As linear_back; must follow conv() on the same x. dx is NULL in a first layer. */
    void (*conv_back)(struct conv_plan *p, int n, const float *x, const float *w,
                      const float *y, const float *dy, float *dw, float *dbias,
                      float *dx);

    struct norm_plan *(*norm_plan)(struct norm_shape shape, struct scratches *memory);
    /* From now on mean and var, and the gradients through them, are those of all
     * ranks' batches in a pass with `learn`, with one sum in forward and one in
     * backward. n may then be 0, and no batch may be larger than the plan's; a rank
     * without samples must take part. dw and dbias remain those of its own samples. */
    void (*norm_share)(struct norm_plan *p, norm_sum_fn sum, void *arg);
    void (*norm)(struct norm_plan *p, int n, const float *x, const float *w,
                 const float *bias, float *running, bool learn, const float *shortcut,
                 float *y);
    /* Must follow norm() with `learn` on the same x. dshortcut may be NULL. */
    void (*norm_back)(struct norm_plan *p, int n, const float *x, const float *w,
                      const float *y, const float *dy, float *dw, float *dbias, float *dx,
                      float *dshortcut);
    /* Mean over H, W of images in the engine's layout: y[n,C], in plain order. */
    void (*mean)(struct map_shape shape, int n, const float *x, float *y);
    void (*mean_back)(struct map_shape shape, int n, const float *dy, float *dx);
    /* Floats of one image in the engine's layout. */
    size_t (*map_floats)(struct map_shape shape);

    /* y = y * mask / (1-p) in place, the mask drawn with dropout_key() as in rng.h; the
     * same of the gradient of y. */
    void (*dropout)(float *y, int64_t n, float p, uint64_t key);

    /* For plain arrays, here and below: up to KERNELS_GRAIN floats are processed by
     * the calling thread, so that several may call at once. Sums of squares do not
     * depend on the number of threads. */
    void (*add)(float *to, const float *from, int64_t n);
    void (*scale)(float *v, int64_t n, float by);
    double (*sum_squares)(const float *v, int64_t n);
    /* Are all of `floats` floats finite? `image`: images in the engine's own layout. */
    bool (*finite)(const float *v, size_t floats, bool image);

    /* ---- sequences: rows of floats, one per token; in fp32 with every engine, except
     * gemm, which rounds its operands to the engine's precision. `room` has as many
     * floats as the function beside it returns, for the current number of threads ---- */
    size_t (*gemm_room)(void);
    void (*gemm)(const struct gemm *g, float *room);
    /* n rows; kept[n,2] is saved for backward, where the gradient is added to dx with
     * `add` */
    void (*row_norm)(struct row_norm f, int n, const float *x, float *y, float *kept);
    void (*row_norm_back)(struct row_norm f, int n, const float *x, const float *kept,
                          const float *dy, float *dw, float *dbias, float *dx, bool add);
    void (*column_sums)(int n, int C, const float *dy, float *sums);
    /* n rows of y or, with dy, of x's gradient */
    void (*activation)(struct activation f, int n, const float *x, const float *dy,
                       float *to);
    /* Turns pairs of numbers, from the two halves of each head of the queries and keys
     * in x[n,T,heads + 2 kv_heads,D], by angles, or `back`; values stay.
     * turns[T,2,D/2]: cosines and sines. */
    void (*rotary)(struct attention_shape s, int n, const float *turns, const float *x,
                   float *y, bool back);
    /* lse[n,heads,T] is saved for backward: the logarithms of the softmax sums in
     * place of the weights */
    size_t (*attention_room)(struct attention_shape s);
    void (*attention)(struct attention_shape s, int n, const float *qkv, float *y,
                      float *lse, float *room);
    void (*attention_back)(struct attention_shape s, int n, const float *qkv,
                           const float *y, const float *lse, const float *dy, float *dqkv,
                           float *room);
    /* Cross-entropy of images' classes, too. found[n,2]: -log
     * softmax(logits[n,V])[label], and 1 if the label is the first of the most likely.
     * logits become the gradient of the sum of losses times `scale`; scale 0: they stay
     * unchanged. `smooth` of the label's weight is spread over all V classes, as
     * label_smoothing of PyTorch's CrossEntropyLoss does (Szegedy et al., CVPR 2016). */
    void (*class_loss)(int n, int V, float *logits, const uint32_t *labels, float smooth,
                       float scale, double *found);

    void (*update)(struct update u);
};

/* The fastest engine of this build and precision (of fp32 for precisions of GPUs) that
 * runs on this CPU, or the one called `name`. */
const struct kernels *kernels_get(const char *name, enum precision precision,
                                  struct ddp_err *err);

/* The engines of this build: fp32 first, then bf16, each fastest first; kernels == NULL
 * ends. */
extern const struct kernels_here {
    const struct kernels *kernels;
    bool (*runs_here)(void); /* does this CPU have the instructions? */
} all_kernels[];

#endif
