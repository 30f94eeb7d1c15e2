/* worker/kernels/vector_norm.c - batch normalisation with shortcut and ReLU, and the
 * mean of an image
 *
 * Both run along the pixels of a block of channels, over all images: two passes for
 * mean and variance, one for y. Sums are made image by image, so that a large batch
 * does not lose small contributions. Threads share out the blocks of channels, so
 * results do not depend on their number. On one rank a block is measured and then
 * normalised while it is in the cache; with several, all blocks are measured first.
 */
#include "common/mem.h"
#include "worker/kernels/norm_share.h"
#include "worker/kernels/pool.h"
#include "worker/kernels/scratch.h"
#include "worker/kernels/vector_elem.h"

#include <math.h>
#include <string.h>

struct norm_plan {
    struct norm_shape s;
    int blocks;
    float *mean, *scale;    /* [C]: of the last pass with `learn`; 1 / sqrt(var + eps) */
    float *w, *bias, *d[2]; /* [C], padded to whole blocks */
    struct norm_share share;
};

struct norm_plan *NAMED(norm_plan)(struct norm_shape s, struct scratches *memory)
{
    struct norm_plan *p = scratch_bytes(memory, sizeof(*p));
    p->s = s;
    p->blocks = round_up(s.C, BLOCK) / BLOCK;
    float **all[] = {&p->mean, &p->scale, &p->w, &p->bias, &p->d[0], &p->d[1]};
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        *all[i] = scratch_in(memory, (size_t)p->blocks * BLOCK);
    p->share.v = scratch_bytes(memory, (2 * (size_t)s.C + 1) * sizeof(double));
    return p;
}

void NAMED(norm_share)(struct norm_plan *p, norm_sum_fn sum, void *arg)
{
    p->share.sum = sum;
    p->share.arg = arg;
}

struct call {
    struct norm_plan *p;
    int n;
    bool learn; /* else mean and scale are known */
    const float *x, *shortcut, *y, *dy;
    float *running, *out, *dshortcut;
};

ALWAYS struct two minus(struct two a, struct two b)
{
    return (struct two){a.lo - b.lo, a.hi - b.hi};
}

ALWAYS struct two times(struct two a, struct two b)
{
    return (struct two){a.lo * b.lo, a.hi * b.hi};
}

ALWAYS struct two scaled(struct two a, float by)
{
    return (struct two){a.lo * by, a.hi * by};
}

/* The first pixel of block kb of image b. */
static size_t place(const struct norm_plan *p, int b, int kb)
{
    size_t block = (size_t)(p->s.H * p->s.W) * WORDS;
    return ((size_t)b * (size_t)p->blocks + (size_t)kb) * block;
}

/* Means over n images of x (power 1) or (x - from)^2 (power 2) of block kb. */
static struct two moment(const struct call *a, int kb, struct two from, int power)
{
    size_t pixels = (size_t)a->p->s.H * (size_t)a->p->s.W;
    struct two all = {0};
    for (int b = 0; b < a->n; b++) {
        const float *x = a->x + place(a->p, b, kb);
        struct two sum = {0};
        for (size_t i = 0; i < pixels; i++, x += WORDS) {
            struct two v = minus(pixel(x), from);
            sum = plus(sum, power == 1 ? v : times(v, v));
        }
        all = plus(all, sum);
    }
    /* without images 0: padding channels keep it, and NaN would reach a test */
    return scaled(all, a->n > 0 ? 1 / ((float)a->n * (float)pixels) : 0);
}

/* Of this batch; the variance is stored in the buffer that backward uses for a sum
 * later. */
static void measure_block(int kb, int part, void *arg)
{
    const struct call *a = arg;
    float *mean = a->p->mean + kb * BLOCK;
    put(mean, moment(a, kb, (struct two){0}, 1));
    put(a->p->d[0] + kb * BLOCK, moment(a, kb, take(mean), 2));
}

/* Normalises channels whose mean and variance are known. */
static void settle(struct norm_plan *p, int from, int to, float *running)
{
    const float *var = p->d[0];
    float n = (float)p->share.count, unbias = n > 1 ? n / (n - 1) : 1;
    for (int c = from; c < to; c++) {
        float *m = running + c, *v = m + p->s.C;
        p->scale[c] = 1 / sqrtf(var[c] + p->s.eps);
        float step = isfinite(var[c]) ? p->s.momentum : 0;
        *m += step > 0 ? step * (p->mean[c] - *m) : 0;
        *v += step > 0 ? step * (var[c] * unbias - *v) : 0;
    }
}

/* Padding channels may have the mean of a bad batch: 0 times NaN would be NaN. */
static void use_running(struct norm_plan *p, const float *running)
{
    int C = p->s.C;
    for (int c = 0; c < p->blocks * BLOCK; c++) {
        bool used = c < C;
        p->mean[c] = used ? running[c] : 0;
        p->scale[c] = used ? 1 / sqrtf(running[C + c] + p->s.eps) : 0;
    }
}

static void forward_block(int kb, int part, void *arg)
{
    const struct call *a = arg;
    struct norm_plan *p = a->p;
    size_t pixels = (size_t)p->s.H * (size_t)p->s.W;
    if (a->learn) {
        measure_block(kb, part, arg);
        settle(p, kb * BLOCK, at_most(p->s.C, (kb + 1) * BLOCK), a->running);
    }
    struct two mean = take(p->mean + kb * BLOCK), bias = take(p->bias + kb * BLOCK),
               scale = times(take(p->scale + kb * BLOCK), take(p->w + kb * BLOCK));
    for (int b = 0; b < a->n; b++) {
        size_t at = place(p, b, kb);
        for (size_t i = 0; i < pixels; i++, at += WORDS) {
            struct two v = plus(times(minus(pixel(a->x + at), mean), scale), bias);
            if (a->shortcut)
                v = plus(v, pixel(a->shortcut + at));
            store_pixel(a->out + at, p->s.relu ? two_positive(v) : v);
        }
    }
}

void NAMED(norm)(struct norm_plan *p, int n, const float *x, const float *w,
                 const float *bias, float *running, bool learn, const float *shortcut,
                 float *y)
{
    memcpy(p->w, w, (size_t)p->s.C * sizeof(float));
    memcpy(p->bias, bias, (size_t)p->s.C * sizeof(float));
    struct call call = {.p = p,
                        .n = n,
                        .learn = learn,
                        .x = x,
                        .running = running,
                        .shortcut = shortcut,
                        .out = y};
    double count = (double)n * p->s.H * p->s.W;
    if (learn)
        p->share.count = count;
    else
        use_running(p, running);
    if (learn && p->share.sum) {
        pool_each(p->blocks, measure_block, &call);
        norm_share_moments(&p->share, (size_t)p->s.C, count, p->mean, p->d[0]);
        settle(p, 0, p->s.C, running);
        call.learn = false;
    }
    pool_each(p->blocks, forward_block, &call);
}

/* The gradient before the ReLU. */
ALWAYS struct two masked(const struct call *a, size_t at)
{
    struct two g = pixel(a->dy + at);
    if (!a->p->s.relu)
        return g;
    return two_where_positive(pixel(a->y + at), g);
}

/* dbias = sum of g, dw = sum of g * xhat, over all images of block kb. */
static void sums_block(int kb, int part, void *arg)
{
    const struct call *a = arg;
    struct norm_plan *p = a->p;
    size_t pixels = (size_t)p->s.H * (size_t)p->s.W;
    struct two mean = take(p->mean + kb * BLOCK), scale = take(p->scale + kb * BLOCK);
    struct two db = {0}, dw = {0};
    for (int b = 0; b < a->n; b++) {
        size_t at = place(p, b, kb);
        struct two db1 = {0}, dw1 = {0};
        for (size_t i = 0; i < pixels; i++, at += WORDS) {
            struct two g = masked(a, at);
            db1 = plus(db1, g);
            dw1 = plus(dw1, times(g, minus(pixel(a->x + at), mean)));
        }
        db = plus(db, db1);
        dw = plus(dw, dw1);
    }
    put(p->d[0] + kb * BLOCK, times(dw, scale));
    put(p->d[1] + kb * BLOCK, db);
}

/* dx = w * scale * (g - mean of g - xhat * mean of g * xhat) */
static void dx_block(int kb, int part, void *arg)
{
    const struct call *a = arg;
    const struct norm_plan *p = a->p;
    size_t pixels = (size_t)p->s.H * (size_t)p->s.W;
    float each = 1 / (float)p->share.count;
    struct two mean = take(p->mean + kb * BLOCK), scale = take(p->scale + kb * BLOCK);
    struct two w = times(take(p->w + kb * BLOCK), scale);
    struct two slope = scaled(times(take(p->d[0] + kb * BLOCK), scale), each);
    struct two mean_g = scaled(take(p->d[1] + kb * BLOCK), each);
    for (int b = 0; b < a->n; b++) {
        size_t at = place(p, b, kb);
        for (size_t i = 0; i < pixels; i++, at += WORDS) {
            struct two g = masked(a, at), off = minus(pixel(a->x + at), mean);
            if (a->dshortcut)
                store_pixel(a->dshortcut + at, g);
            g = times(w, minus(minus(g, mean_g), times(off, slope)));
            store_pixel(a->out + at, g);
        }
    }
}

/* On one rank, while the block is in the cache. */
static void back_block(int kb, int part, void *arg)
{
    sums_block(kb, part, arg);
    dx_block(kb, part, arg);
}

void NAMED(norm_back)(struct norm_plan *p, int n, const float *x, const float *w,
                      const float *y, const float *dy, float *dw, float *dbias, float *dx,
                      float *dshortcut)
{
    size_t C = (size_t)p->s.C;
    memcpy(p->w, w, C * sizeof(float));
    struct call call = {
        .p = p, .n = n, .x = x, .y = y, .dy = dy, .out = dx, .dshortcut = dshortcut};
    pool_each(p->blocks, p->share.sum ? sums_block : back_block, &call);
    memcpy(dw, p->d[0], C * sizeof(float));
    memcpy(dbias, p->d[1], C * sizeof(float));
    if (p->share.sum) {
        norm_share_sums(&p->share, C, p->d[0], p->d[1]);
        pool_each(p->blocks, dx_block, &call);
    }
}

/* ---- the mean of an image ---- */

void NAMED(mean)(struct map_shape s, int n, const float *x, float *y)
{
    int pixels = s.H * s.W;
    for (int b = 0; b < n; b++, y += s.C)
        for (int c = 0; c < s.C; c += BLOCK) {
            struct two sum = {0};
            float means[BLOCK];
            for (int i = 0; i < pixels; i++, x += WORDS)
                sum = plus(sum, pixel(x));
            put(means, (struct two){sum.lo / (float)pixels, sum.hi / (float)pixels});
            memcpy(y + c, means, (size_t)at_most(BLOCK, s.C - c) * sizeof(float));
        }
}

void NAMED(mean_back)(struct map_shape s, int n, const float *dy, float *dx)
{
    int pixels = s.H * s.W;
    for (int b = 0; b < n; b++, dy += s.C)
        for (int c = 0; c < s.C; c += BLOCK) {
            float each[BLOCK] = {0};
            for (int i = 0; i < at_most(BLOCK, s.C - c); i++)
                each[i] = dy[c + i] / (float)pixels;
            for (int i = 0; i < pixels; i++, dx += WORDS)
                store_pixel(dx, take(each));
        }
}
