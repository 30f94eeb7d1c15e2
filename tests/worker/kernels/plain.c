/* tests/worker/kernels/plain.c - the reference engine: naive loops, one line per formula
 *
 * Slow on purpose: the other engines are compared with it, so it should be possible to
 * check it by reading. Images are NCHW everywhere. Dot products accumulate in double,
 * so that the result does not depend on the order of summation. It has no functions of
 * sequences and of arrays: test_tokens.c and test_kernels.c say what those must give.
 */
#include "tests/worker/kernels/plain.h"

#include "common/mem.h"
#include "worker/kernels/rng.h"
#include "worker/kernels/scratch.h"
#include "worker/kernels/tables.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct linear_plan {
    struct linear_shape s;
};

static struct linear_plan *linear_plan(struct linear_shape shape,
                                       struct scratches *memory)
{
    struct linear_plan *p = scratch_bytes(memory, sizeof(*p));
    p->s = shape;
    return p;
}

static void linear(struct linear_plan *p, int n, const float *x, const float *w,
                   const float *bias, float *y)
{
    int C = p->s.C, K = p->s.K;
    for (int b = 0; b < n; b++)
        for (int k = 0; k < K; k++) {
            double sum = (double)bias[k];
            for (int c = 0; c < C; c++)
                sum += (double)x[(size_t)b * C + c] * (double)w[(size_t)k * C + c];
            y[(size_t)b * K + k] = (float)(p->s.relu && sum < 0 ? 0 : sum);
        }
}

/* The gradient before the ReLU. */
static float masked(const struct linear_plan *p, const float *y, const float *dy,
                    size_t i)
{
    return p->s.relu && !(y[i] > 0) ? 0 : dy[i];
}

/* The factors of dw: the number of samples, g[B,K], x[B,C]. */
static size_t linear_factors(const struct linear_plan *p)
{
    return 1 + (size_t)p->s.B * (size_t)(p->s.K + p->s.C);
}

static void keep_factors(const struct linear_plan *p, int n, const float *x,
                         const float *y, const float *dy, float *factors)
{
    size_t C = (size_t)p->s.C, K = (size_t)p->s.K, B = (size_t)n;
    float *g = factors + 1;
    memcpy(factors, &n, sizeof n);
    for (size_t i = 0; i < B * K; i++)
        g[i] = masked(p, y, dy, i);
    if (n > 0) /* without samples x may be NULL */
        memcpy(g + (size_t)p->s.B * K, x, B * C * sizeof *x);
}

static void linear_back(struct linear_plan *p, int n, const float *x, const float *w,
                        const float *y, const float *dy, float *dw, float *factors,
                        float *dbias, float *dx)
{
    size_t C = (size_t)p->s.C, K = (size_t)p->s.K, B = (size_t)n;
    if (factors)
        keep_factors(p, n, x, y, dy, factors);
    for (size_t k = 0; k < K; k++) {
        double sum = 0;
        for (size_t b = 0; b < B; b++)
            sum += (double)masked(p, y, dy, b * K + k);
        dbias[k] = (float)sum;
        for (size_t c = 0; !factors && c < C; c++) {
            sum = 0;
            for (size_t b = 0; b < B; b++)
                sum += (double)masked(p, y, dy, b * K + k) * (double)x[b * C + c];
            dw[k * C + c] = (float)sum;
        }
    }
    for (size_t b = 0; dx && b < B; b++)
        for (size_t c = 0; c < C; c++) {
            double sum = 0;
            for (size_t k = 0; k < K; k++)
                sum += (double)masked(p, y, dy, b * K + k) * (double)w[k * C + c];
            dx[b * C + c] = (float)sum;
        }
}

static void linear_rows(const struct linear_plan *p, float *const *factors, int batches,
                        int from, int to, float *dw)
{
    size_t C = (size_t)p->s.C, K = (size_t)p->s.K;
    for (size_t k = (size_t)from; k < (size_t)to; k++)
        for (size_t c = 0; c < C; c++, dw++)
            for (int i = 0, n; i < batches; i++) {
                const float *g = factors[i] + 1, *x = g + (size_t)p->s.B * K;
                double sum = 0;
                memcpy(&n, factors[i], sizeof n);
                for (size_t b = 0; b < (size_t)n; b++)
                    sum += (double)g[b * K + k] * (double)x[b * C + c];
                *dw = (float)sum + (i > 0 ? *dw : 0);
            }
}

struct conv_plan {
    struct conv_shape s;
    int OH, OW;   /* after the convolution */
    uint8_t *arg; /* [B,K,OH/2,OW/2]: which of the four was the maximum, when pooling */
    float *full;  /* [K,OH,OW]: one image before pooling, or its gradient */
};

static struct conv_plan *conv_plan(struct conv_shape s, struct scratches *memory)
{
    struct conv_plan *p = scratch_bytes(memory, sizeof(*p));
    p->s = s;
    p->s.stride = s.stride ? s.stride : 1;
    p->OH = (s.H + 2 * s.pad - s.R) / p->s.stride + 1;
    p->OW = (s.W + 2 * s.pad - s.R) / p->s.stride + 1;
    p->full = scratch_in(memory, (size_t)s.K * p->OH * p->OW);
    if (s.pool)
        p->arg = scratch_bytes(memory, (size_t)s.B * s.K * (p->OH / 2) * (p->OW / 2));
    return p;
}

static size_t conv_floats(const struct conv_plan *p)
{
    return p->s.pool ? (size_t)p->s.K * (p->OH / 2) * (p->OW / 2)
                     : (size_t)p->s.K * p->OH * p->OW;
}

/* The pixel of channel 0 under a tap, or -1 in the padding. */
static int meets(const struct conv_plan *p, int oh, int ow, int r, int s)
{
    int h = oh * p->s.stride + r - p->s.pad, w = ow * p->s.stride + s - p->s.pad;
    return h < 0 || h >= p->s.H || w < 0 || w >= p->s.W ? -1 : h * p->s.W + w;
}

static void conv_image(const struct conv_plan *p, const float *x, const float *w,
                       const float *bias, float *y)
{
    int C = p->s.C, plane = p->s.H * p->s.W, R = p->s.R, at;
    for (int k = 0; k < p->s.K; k++)
        for (int oh = 0; oh < p->OH; oh++)
            for (int ow = 0; ow < p->OW; ow++) {
                double sum = bias ? (double)bias[k] : 0;
                for (int c = 0; c < C; c++)
                    for (int r = 0; r < R; r++)
                        for (int s = 0; s < R; s++)
                            if ((at = meets(p, oh, ow, r, s)) >= 0)
                                sum += (double)x[c * plane + at] *
                                       (double)w[((k * C + c) * R + r) * R + s];
                *y++ = (float)(sum < 0 && !p->s.bare ? 0 : sum);
            }
}

/* The first of equal maxima in row order and NaN as the maximum, as in PyTorch. */
static void pool_image(const struct conv_plan *p, const float *full, float *y,
                       uint8_t *arg)
{
    int OW = p->OW;
    for (int k = 0; k < p->s.K; k++)
        for (int i = 0; i < p->OH / 2; i++)
            for (int j = 0; j < OW / 2; j++) {
                const float *from = full + (k * p->OH + 2 * i) * OW + 2 * j;
                const float four[4] = {from[0], from[1], from[OW], from[OW + 1]};
                uint8_t best = 0;
                for (uint8_t q = 1; q < 4; q++)
                    if (four[q] > four[best] || isnan(four[q]))
                        best = q;
                *y++ = four[best];
                *arg++ = best;
            }
}

static void conv(struct conv_plan *p, int n, const float *x, const float *w,
                 const float *bias, float *y)
{
    size_t in = (size_t)p->s.C * p->s.H * p->s.W, out = conv_floats(p);
    for (int b = 0; b < n; b++) {
        conv_image(p, x + b * in, w, bias, p->s.pool ? p->full : y + b * out);
        if (p->s.pool)
            pool_image(p, p->full, y + b * out, p->arg + b * out);
    }
}

/* One image's gradient before ReLU and pooling, to p->full. */
static void unpool_image(struct conv_plan *p, int b, const float *y, const float *dy)
{
    size_t all = (size_t)p->s.K * p->OH * p->OW;
    if (!p->s.pool) {
        for (size_t i = 0; i < all; i++)
            p->full[i] = y[i] > 0 || p->s.bare ? dy[i] : 0;
        return;
    }
    const uint8_t *arg = p->arg + b * conv_floats(p);
    for (size_t i = 0; i < all; i++)
        p->full[i] = 0;
    for (int k = 0; k < p->s.K; k++)
        for (int i = 0; i < p->OH / 2; i++)
            for (int j = 0; j < p->OW / 2; j++, y++, dy++, arg++) {
                int oh = 2 * i + *arg / 2, ow = 2 * j + *arg % 2;
                p->full[(k * p->OH + oh) * p->OW + ow] = *y > 0 ? *dy : 0;
            }
}

/* Adds one image's contribution to dw and dbias, and computes its dx. */
static void conv_back_image(const struct conv_plan *p, const float *x, const float *w,
                            float *dw, float *dbias, float *dx)
{
    int C = p->s.C, plane = p->s.H * p->s.W, R = p->s.R, met;
    const float *g = p->full;
    for (int k = 0; k < p->s.K; k++)
        for (int oh = 0; oh < p->OH; oh++)
            for (int ow = 0; ow < p->OW; ow++, g++) {
                if (dbias)
                    dbias[k] += *g;
                for (int c = 0; c < C; c++)
                    for (int r = 0; r < R; r++)
                        for (int s = 0; s < R; s++) {
                            if ((met = meets(p, oh, ow, r, s)) < 0)
                                continue;
                            int at = c * plane + met;
                            int tap = ((k * C + c) * R + r) * R + s;
                            dw[tap] += *g * x[at];
                            if (dx)
                                dx[at] += *g * w[tap];
                        }
            }
}

static void conv_back(struct conv_plan *p, int n, const float *x, const float *w,
                      const float *y, const float *dy, float *dw, float *dbias, float *dx)
{
    size_t in = (size_t)p->s.C * p->s.H * p->s.W, out = conv_floats(p);
    for (int i = 0; i < p->s.K * p->s.C * p->s.R * p->s.R; i++)
        dw[i] = 0;
    for (int k = 0; dbias && k < p->s.K; k++)
        dbias[k] = 0;
    for (size_t i = 0; dx && !p->s.adds && i < in * n; i++)
        dx[i] = 0;
    for (int b = 0; b < n; b++) {
        unpool_image(p, b, y + b * out, dy + b * out);
        conv_back_image(p, x + b * in, w, dw, dbias, dx ? dx + b * in : NULL);
    }
    /* x is the output of a ReLU */
    for (size_t i = 0; dx && !p->s.bare && i < in * n; i++)
        dx[i] = x[i] > 0 ? dx[i] : 0;
}

static void dropout(float *y, int64_t n, float p, uint64_t key)
{
    uint32_t below = rng_drop_below(p);
    float scale = rng_keep_scale(p);
    for (int64_t i = 0; i < n; i++) {
        uint64_t word = rng_word(key, (uint64_t)i / 4);
        y[i] = (word >> i % 4 * 16 & 0xffff) < below ? 0 : y[i] * scale;
    }
}

static void sgd(struct update u)
{
    for (int64_t i = 0; i < u.n; i++) {
        float d = u.g[i] + u.decay * u.w[i];
        if (u.m != NULL)
            d = u.m[i] = u.b1 * u.m[i] + d;
        u.w[i] -= u.lr * d;
    }
}

static void adam(struct update u)
{
    double unbias1 = 1 - pow((double)u.b1, (double)u.step);
    double unbias2 = 1 - pow((double)u.b2, (double)u.step);
    for (int64_t i = 0; i < u.n; i++) {
        float d = u.g[i] + u.decay * u.w[i];
        u.m[i] = u.b1 * u.m[i] + (1 - u.b1) * d;
        u.v[i] = u.b2 * u.v[i] + (1 - u.b2) * d * d;
        double root = sqrt((double)u.v[i] / unbias2) + (double)u.eps;
        u.w[i] =
            u.w[i] * u.keep - (float)((double)u.lr / unbias1 * (double)u.m[i] / root);
    }
}

static void adadelta(struct update u)
{
    for (int64_t i = 0; i < u.n; i++) {
        float d = u.g[i] + u.decay * u.w[i];
        u.m[i] = u.b1 * u.m[i] + (1 - u.b1) * d * d;
        float delta = sqrtf(u.v[i] + u.eps) / sqrtf(u.m[i] + u.eps) * d;
        u.v[i] = u.b1 * u.v[i] + (1 - u.b1) * delta * delta;
        u.w[i] -= u.lr * delta;
    }
}

static void update(struct update u)
{
    (u.rule == RULE_SGD ? sgd : u.rule == RULE_ADAM ? adam : adadelta)(u);
}

NORM_KERNELS(DECLARE_KERNEL, plain)

const struct kernels kernels_plain = {.name = "plain",
                                      .precision = PRECISION_FP32,
                                      .arithmetic = "fp32, sums in double",
                                      .dropout = dropout,
                                      .update = update,
                                      WEIGHT_KERNELS(STATIC_ROW, )
                                          NORM_KERNELS(KERNEL_ROW, plain)};
