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

struct span { /* a loop along arrays */
    void (*loop)(struct span s);
    struct update u; /* with its arrays, and their length */
    float scale;
    uint64_t key;
    uint32_t below;
};

enum { GRAIN = KERNELS_GRAIN };

static void span_part(int part, int parts, void *arg)
{
    struct span s = *(struct span *)arg;
    int from, to;
    pool_share((int)((s.u.n + GRAIN - 1) / GRAIN), 1, part, parts, &from, &to);
    int64_t first = (int64_t)from * GRAIN, end = (int64_t)to * GRAIN;
    s.u.n = (end < s.u.n ? end : s.u.n) - first;
    s.u.w += first;
    s.u.g = s.u.g ? s.u.g + first : NULL;
    s.u.m = s.u.m ? s.u.m + first : NULL;
    s.u.v = s.u.v ? s.u.v + first : NULL;
    s.key += (uint64_t)first / 4 * RNG_WEYL; /* word i of the rest is word first/4 + i */
    if (s.u.n > 0)
        s.loop(s);
}

static void run(struct span s)
{
    if (s.u.n <= GRAIN)
        s.loop(s);
    else
        pool_run(span_part, &s);
}

static void dropout_loop(struct span s)
{
    float *y = s.u.w;
    int64_t i = 0, n = s.u.n;
    for (; i + 64 <= n; i += 64) {
        uint64_t word[16];
        uint16_t lane[64];
        for (int j = 0; j < 16; j++)
            word[j] = rng_word(s.key, (uint64_t)i / 4 + (uint64_t)j);
        memcpy(lane, word, sizeof(lane)); /* the lowest lane first */
        for (int j = 0; j < 64; j++)
            y[i + j] = lane[j] < s.below ? 0 : y[i + j] * s.scale;
    }
    for (; i < n; i++) {
        uint64_t word = rng_word(s.key, (uint64_t)i / 4);
        y[i] = (word >> i % 4 * 16 & 0xffff) < s.below ? 0 : y[i] * s.scale;
    }
}

static struct span to_drop(float *y, int64_t n, float p, uint64_t key)
{
    return (struct span){.loop = dropout_loop,
                         .u = {.w = y, .n = n},
                         .key = key,
                         .below = rng_drop_below(p),
                         .scale = rng_keep_scale(p)};
}

void NAMED(drop)(float *y, int64_t n, float p, uint64_t key)
{
    dropout_loop(to_drop(y, n, p, key));
}

static void dropout(float *y, int64_t n, float p, uint64_t key)
{
    run(to_drop(y, n, p, key));
}

static void sgd_loop(struct span s)
{
    const struct update u = s.u;
    float *restrict w = u.w, *restrict m = u.m;
    const float *restrict g = u.g;
    if (m == NULL) {
        for (int64_t i = 0; i < u.n; i++)
            w[i] -= u.lr * (g[i] + u.decay * w[i]);
        return;
    }
    for (int64_t i = 0; i < u.n; i++) {
        float d = u.b1 * m[i] + (g[i] + u.decay * w[i]);
        m[i] = d;
        w[i] -= u.lr * d;
    }
}

static void adam_loop(struct span s)
{
    const struct update u = s.u;
    float *restrict w = u.w, *restrict m = u.m, *restrict v = u.v, scale = s.scale;
    const float *restrict g = u.g;
    for (int64_t i = 0; i < u.n; i++) {
        float d = g[i] + u.decay * w[i];
        m[i] = u.b1 * m[i] + (1 - u.b1) * d;
        v[i] = u.b2 * v[i] + (1 - u.b2) * d * d;
        w[i] = w[i] * u.keep - u.lr * m[i] / (sqrtf(v[i]) * scale + u.eps);
    }
}

static void adadelta_loop(struct span s)
{
    const struct update u = s.u;
    float *restrict w = u.w, *restrict m = u.m, *restrict v = u.v;
    const float *restrict g = u.g;
    for (int64_t i = 0; i < u.n; i++) {
        float d = g[i] + u.decay * w[i];
        m[i] = u.b1 * m[i] + (1 - u.b1) * d * d;
        float delta = sqrtf(v[i] + u.eps) / sqrtf(m[i] + u.eps) * d;
        v[i] = u.b1 * v[i] + (1 - u.b1) * delta * delta;
        w[i] -= u.lr * delta;
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

static void update(struct update u)
{
    static void (*const loops[])(struct span s) = {
        [RULE_SGD] = sgd_loop, [RULE_ADAM] = adam_loop, [RULE_ADADELTA] = adadelta_loop};
    float scale = 1;
    if (u.rule == RULE_ADAM) { /* the moments' biases */
        u.lr = (float)((double)u.lr / (1 - power((double)u.b1, u.step)));
        scale = (float)(1 / sqrt(1 - power((double)u.b2, u.step)));
    }
    run((struct span){.loop = loops[u.rule], .u = u, .scale = scale});
}

static void add_loop(struct span s)
{
    float *restrict w = s.u.w;
    const float *restrict g = s.u.g;
    for (int64_t i = 0; i < s.u.n; i++)
        w[i] += g[i];
}

static void add(float *to, const float *from, int64_t n)
{
    run((struct span){.loop = add_loop, .u = {.w = to, .g = from, .n = n}});
}

static void scale_loop(struct span s)
{
    float *w = s.u.w, by = s.scale;
    for (int64_t i = 0; i < s.u.n; i++)
        w[i] *= by;
}

static void scale(float *v, int64_t n, float by)
{
    run((struct span){.loop = scale_loop, .u = {.w = v, .n = n}, .scale = by});
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
                                       .update = update,
                                       LAYER_KERNELS(KERNEL_ROW, TABLE)
                                           PRODUCT_KERNELS(KERNEL_ROW, TABLE)
                                               SEQUENCE_KERNELS(KERNEL_ROW, ENGINE)};
