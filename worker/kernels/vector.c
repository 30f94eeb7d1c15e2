/* worker/kernels/vector.c - the vector engine's table, and its functions on plain
 * arrays
 *
 * Loops over one index are vectorised by the compiler for the width this file is
 * compiled for; long ones are shared out among the threads.
 */
#include "worker/kernels/vector_elem.h"

#include "worker/kernels/pool.h"
#include "worker/kernels/rng.h"

#include <math.h>
#include <string.h>

/* ---- loops along arrays ---- */

struct span { /* a loop over n elements, with its arguments */
    void (*loop)(struct span s);
    int64_t n;
    float *w, *a, *b;
    const float *g;
    float lr, b1, b2, eps, decay, scale, keep;
    uint64_t key;
    uint32_t below;
};

enum { GRAIN = KERNELS_GRAIN };

static void span_part(int part, int parts, void *arg)
{
    struct span s = *(struct span *)arg;
    int from, to;
    pool_share((int)((s.n + GRAIN - 1) / GRAIN), 1, part, parts, &from, &to);
    int64_t first = (int64_t)from * GRAIN, end = (int64_t)to * GRAIN;
    s.n = (end < s.n ? end : s.n) - first;
    s.w += first;
    s.g = s.g ? s.g + first : NULL;
    s.a = s.a ? s.a + first : NULL;
    s.b = s.b ? s.b + first : NULL;
    s.key += (uint64_t)first / 4 * RNG_WEYL; /* word i of the rest is word first/4 + i */
    if (s.n > 0)
        s.loop(s);
}

static void run(struct span s)
{
    if (s.n <= GRAIN)
        s.loop(s);
    else
        pool_run(span_part, &s);
}

static void dropout_loop(struct span s)
{
    int64_t i = 0;
    for (; i + 64 <= s.n; i += 64) {
        uint64_t word[16];
        uint16_t lane[64];
        for (int j = 0; j < 16; j++)
            word[j] = rng_word(s.key, (uint64_t)i / 4 + (uint64_t)j);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        memcpy(lane, word, sizeof(lane));
#else
        for (int j = 0; j < 64; j++)
            lane[j] = (uint16_t)(word[j / 4] >> j % 4 * 16);
#endif
        for (int j = 0; j < 64; j++)
            s.w[i + j] = lane[j] < s.below ? 0 : s.w[i + j] * s.scale;
    }
    for (; i < s.n; i++) {
        uint64_t word = rng_word(s.key, (uint64_t)i / 4);
        s.w[i] = (word >> i % 4 * 16 & 0xffff) < s.below ? 0 : s.w[i] * s.scale;
    }
}

static struct span to_drop(float *y, int64_t n, float p, uint64_t key)
{
    return (struct span){.loop = dropout_loop,
                         .n = n,
                         .w = y,
                         .key = key,
                         .below = rng_drop_below(p),
                         .scale = rng_keep_scale(p)};
}

void NAMED(drop)(float *y, int64_t n, float p, uint64_t key)
{
    dropout_loop(to_drop(y, n, p, key));
}

static void dropout(float *y, int64_t n, float p, uint64_t seed, uint64_t stream)
{
    run(to_drop(y, n, p, rng_key(seed, stream)));
}

static void sgd_loop(struct span s)
{
    float *restrict w = s.w, *restrict m = s.a;
    const float *restrict g = s.g;
    if (m == NULL) {
        for (int64_t i = 0; i < s.n; i++)
            w[i] -= s.lr * (g[i] + s.decay * w[i]);
        return;
    }
    for (int64_t i = 0; i < s.n; i++) {
        float d = s.b1 * m[i] + (g[i] + s.decay * w[i]);
        m[i] = d;
        w[i] -= s.lr * d;
    }
}

static void sgd(float *w, const float *g, float *m, int64_t n, float lr, float momentum,
                float decay)
{
    run((struct span){.loop = sgd_loop,
                      .n = n,
                      .w = w,
                      .g = g,
                      .a = m,
                      .lr = lr,
                      .b1 = momentum,
                      .decay = decay});
}

static void adam_loop(struct span s)
{
    float *restrict w = s.w, *restrict m = s.a, *restrict v = s.b;
    const float *restrict g = s.g;
    for (int64_t i = 0; i < s.n; i++) {
        float d = g[i] + s.decay * w[i];
        m[i] = s.b1 * m[i] + (1 - s.b1) * d;
        v[i] = s.b2 * v[i] + (1 - s.b2) * d * d;
        w[i] = w[i] * s.keep - s.lr * m[i] / (sqrtf(v[i]) * s.scale + s.eps);
    }
}

/* b^n by squaring; pow() would be slow, since optimisers are called for each block of
 * a few thousand floats. */
static double power(double b, int64_t n)
{
    double all = 1;
    for (; n > 0; n >>= 1, b *= b)
        all = n & 1 ? all * b : all;
    return all;
}

static void adam(float *w, const float *g, float *m, float *v, int64_t n, float lr,
                 float b1, float b2, float eps, float decay, float keep, int64_t step)
{
    double unbias1 = 1 - power((double)b1, step);
    double unbias2 = 1 - power((double)b2, step);
    run((struct span){.loop = adam_loop,
                      .n = n,
                      .w = w,
                      .g = g,
                      .a = m,
                      .b = v,
                      .b1 = b1,
                      .b2 = b2,
                      .eps = eps,
                      .decay = decay,
                      .keep = keep,
                      .lr = (float)((double)lr / unbias1),
                      .scale = (float)(1 / sqrt(unbias2))});
}

static void adadelta_loop(struct span s)
{
    float *restrict w = s.w, *restrict sq = s.a, *restrict acc = s.b;
    const float *restrict g = s.g;
    for (int64_t i = 0; i < s.n; i++) {
        float d = g[i] + s.decay * w[i];
        sq[i] = s.b1 * sq[i] + (1 - s.b1) * d * d;
        float delta = sqrtf(acc[i] + s.eps) / sqrtf(sq[i] + s.eps) * d;
        acc[i] = s.b1 * acc[i] + (1 - s.b1) * delta * delta;
        w[i] -= s.lr * delta;
    }
}

static void adadelta(float *w, const float *g, float *sq, float *acc, int64_t n, float lr,
                     float rho, float eps, float decay)
{
    run((struct span){.loop = adadelta_loop,
                      .n = n,
                      .w = w,
                      .g = g,
                      .a = sq,
                      .b = acc,
                      .lr = lr,
                      .b1 = rho,
                      .eps = eps,
                      .decay = decay});
}

static void add_loop(struct span s)
{
    float *restrict w = s.w;
    const float *restrict g = s.g;
    for (int64_t i = 0; i < s.n; i++)
        w[i] += g[i];
}

static void add(float *to, const float *from, int64_t n)
{
    run((struct span){.loop = add_loop, .n = n, .w = to, .g = from});
}

static void scale_loop(struct span s)
{
    for (int64_t i = 0; i < s.n; i++)
        s.w[i] *= s.scale;
}

static void scale(float *v, int64_t n, float by)
{
    run((struct span){.loop = scale_loop, .n = n, .w = v, .scale = by});
}

static double sum_squares(const float *v, int64_t n)
{
    double all = 0;
    for (int64_t i = 0; i < n; i += GRAIN, v += GRAIN) {
        int count = (int)(n - i < GRAIN ? n - i : GRAIN), j = 0;
        vec sums[4] = {{0}};
        for (; j + 4 * VL <= count; j += 4 * VL)
            UNROLL for (int k = 0; k < 4; k++)
            {
                vec x = load(v + j + k * VL);
                sums[k] += x * x;
            }
        sums[0] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
        for (int k = 0; k < VL; k++)
            all += (double)sums[0][k];
        for (; j < count; j++)
            all += (double)v[j] * (double)v[j];
    }
    return all;
}

static bool all_finite(const float *v, size_t floats, bool image)
{
    unsigned worst = 0; /* the largest exponent, in the position of the upper half */
    for (size_t i = 0; i < floats; i++) {
        unsigned u, low;
        memcpy(&u, &v[i], sizeof(u));
        low = image && PER_WORD > 1 ? u << 16 & 0x7f800000 : 0;
        u &= 0x7f800000;
        worst = u > worst ? u : worst;
        worst = low > worst ? low : worst;
    }
    return worst < 0x7f800000;
}

size_t NAMED(map_floats)(struct map_shape s)
{
    return (size_t)(round_up(s.C, BLOCK) / PER_WORD) * (size_t)s.H * (size_t)s.W;
}

const struct kernels NAMED(kernels) = {.name = TEXT(ENGINE),
                                       .precision = PRECISION,
                                       .arithmetic = ARITHMETIC,
                                       .finite = all_finite,
                                       .dropout = dropout,
                                       .add = add,
                                       .scale = scale,
                                       .sum_squares = sum_squares,
                                       .sgd = sgd,
                                       .adam = adam,
                                       .adadelta = adadelta,
                                       LAYER_KERNELS(KERNEL_ROW, TABLE)
                                           PRODUCT_KERNELS(KERNEL_ROW, TABLE)
                                               SEQUENCE_KERNELS(KERNEL_ROW, ENGINE)};
