/* worker/kernels/vector_conv.c - convolution with ReLU and pooling: plan and forward;
 * vector_conv_impl.h describes the method */
#include "worker/kernels/vector_conv_impl.h"

#include "common/mem.h"
#include "worker/kernels/pool.h"
#include "worker/kernels/scratch.h"
#include "worker/kernels/vector_winograd.h"

#include <stdlib.h>
#include <string.h>

enum {
    GROUP_PIXELS = 512, /* of a group of images */
    MOST_IMAGES = 6     /* per tile */
};

/* ---- the plan ---- */

static void plan_maps(struct conv_plan *p)
{
    const struct conv_shape *s = &p->s;
    int OH = (s->H + 2 * s->pad - s->R) / p->stride + 1;
    int OW = (s->W + 2 * s->pad - s->R) / p->stride + 1;
    int kblocks = round_up(s->K, BLOCK) / BLOCK;
    p->x = s->first ? (struct maps){s->C, 1, s->H, s->W}
                    : (struct maps){round_up(s->C, BLOCK) / BLOCK, WORDS, s->H, s->W};
    p->in = p->x;
    p->in.H += 2 * s->pad;
    p->in.W += 2 * s->pad;
    p->full = (struct maps){kblocks, WORDS, OH, OW};
    p->out = s->pool ? (struct maps){kblocks, WORDS, OH / 2, OW / 2} : p->full;
    int read = OW;
    for (int a = 0; a < p->stride; a++) {
        struct phase f = phase_of(p, a, s->W);
        p->P = -f.at > p->P ? -f.at : p->P;
        read = f.at + f.count + f.taps - 1 > read ? f.at + f.count + f.taps - 1 : read;
    }
    p->spread = (struct maps){kblocks, WORDS, OH, p->P + read};
    winograd_plan(p);
    int side = p->winograd ? p->winograd + 2 : s->R;
    p->taps = (size_t)(kblocks * BLOCK) * (size_t)(side * side) *
              (size_t)(s->first ? s->C : p->in.blocks * BLOCK);
}

/* Images per group: enough pixels to make reading the weights worth while. With
 * pooling, or NCHW on one side, images are processed one by one. */
static int group_of(const struct conv_plan *p)
{
    int images = GROUP_PIXELS / (p->full.H * p->full.W);
    if (p->s.pool || p->s.first || p->s.last || images < 1)
        return 1;
    return at_most(images, p->s.B);
}

static void plan_own(struct conv_plan *p, struct own *o)
{
    bool pairs = PER_WORD > 1 && !p->s.first && !p->winograd;
    size_t out = (size_t)p->full.H * (size_t)p->full.W;
    size_t in = (size_t)p->s.H * (size_t)p->s.W, group = (size_t)p->group;
    if (p->winograd)
        winograd_room(p, o);
    if (p->s.pad && !p->winograd)
        o->x = scratch_in(&p->memory, group * maps_words(p->in));
    if (!p->winograd)
        o->rows = scratch_in(&p->memory, (size_t)(2 * p->full.W) * BLOCK);
    o->pooled = scratch_in(&p->memory, group * maps_words(p->out));
    o->planes = scratch_in(&p->memory, (size_t)p->out.blocks * BLOCK * out);
    if (p->s.pool || !p->winograd)
        o->dy = scratch_in(&p->memory, group * maps_words(p->spread));
    if (pairs)
        o->pairs = scratch_in(&p->memory,
                              group * (size_t)(p->in.blocks * p->in.H * p->in.W) * BLOCK);
    if (PER_WORD > 1)
        o->dpairs = scratch_in(&p->memory, group * (size_t)p->full.blocks * out * BLOCK);
    if (!p->s.first && !p->winograd)
        o->sum = scratch_in(&p->memory, group * (in > out ? in : out) * BLOCK);
    o->pack = scratch_in(&p->memory, (size_t)(p->s.R * p->s.R) * BLOCK * BLOCK *
                                         (p->winograd ? 2 : 1));
    o->dw = scratch_in(&p->memory, p->taps);
    o->dbias = scratch_in(&p->memory, (size_t)p->full.blocks * BLOCK);
}

struct conv_plan *NAMED(conv_plan)(struct conv_shape s)
{
    struct conv_plan *p = xcalloc(1, sizeof(*p));
    p->s = s;
    p->stride = s.stride ? s.stride : 1;
    plan_maps(p);
    p->w = (elem *)scratch_in(&p->memory, p->taps);
    p->turned = (elem *)scratch_in(&p->memory, p->taps);
    p->bias = scratch_in(&p->memory, (size_t)p->full.blocks * BLOCK);
    if (s.pool)
        p->arg =
            xcalloc((size_t)s.B, (size_t)(p->out.blocks * p->out.H * p->out.W) * BLOCK);
    p->group = group_of(p);
    p->threads = pool_threads();
    p->own = xcalloc((size_t)p->threads, sizeof(*p->own));
    for (int i = 0; i < p->threads; i++)
        plan_own(p, &p->own[i]);
    return p;
}

void NAMED(conv_plan_free)(struct conv_plan *p)
{
    scratches_free(&p->memory);
    free(p->own);
    free(p->arg);
    free(p);
}

size_t NAMED(conv_floats)(const struct conv_plan *p)
{
    if (p->s.last)
        return (size_t)p->s.K * (size_t)p->out.H * (size_t)p->out.W;
    return maps_words(p->out);
}

/* ---- forward ---- */

/* T pixels of a row, of N images each. */
ALWAYS void conv_sums(int T, int N, int step, const struct row *a, const float *from,
                      vec sum[][2])
{
    int taps = a->Q * step, x_step = a->x_step;
    for (int b = 0; b < a->in.blocks; b++)
        for (int r = a->first; r < a->last; r++) {
            const float *x = from + (b * a->in.H + r - a->first) * a->in.W * step;
            const float *w = a->w + (size_t)b * a->w_block + r * taps * BLOCK;
            UNROLL_2 for (int i = 0; i < taps; i++)
            {
                vec lo = load(w), hi = load(w + VL);
                UNROLL for (int n = 0; n < N; n++) UNROLL for (int j = 0; j < T; j++)
                {
                    vec *to = sum[n * T + j];
                    float word = x[(size_t)n * a->x_image + (size_t)(j * x_step)];
                    if (step == 1) {
                        to[0] += word * lo;
                        to[1] += word * hi;
                    } else {
                        to[0] = multiply_add(to[0], word, lo);
                        to[1] = multiply_add(to[1], word, hi);
                    }
                }
                x++;
                w += BLOCK;
            }
        }
}

/* Writes the sums of a tile to y. Not inlined: with a copy in each of the 50 tiles this
 * file takes three times as long to compile. */
static __attribute__((noinline)) void conv_finish(int T, int N, const struct row *a,
                                                  size_t at, vec sum[][2])
{
    for (int n = 0; n < N; n++, at += a->y_image)
        for (int j = 0; j < T; j++, sum++)
            conv_pixel(a, at + (size_t)(j * a->y_step), sum[0][0], sum[0][1]);
}

ALWAYS void conv_tile(int T, int N, int step, const struct row *a, int image, int ow)
{
    vec sum[TILE_MAX][2], done[TILE_MAX][2]; /* in registers, in memory */
    const float *start = a->start + (size_t)image * a->start_image + ow * a->start_step;
    UNROLL for (int n = 0; n < N; n++) UNROLL for (int j = 0; j < T; j++)
    {
        const float *of = start + (size_t)n * a->start_image + j * a->start_step;
        sum[n * T + j][0] = load(of);
        sum[n * T + j][1] = load(of + VL);
    }
    conv_sums(T, N, step, a, a->x + (size_t)image * a->x_image + ow * a->x_step, sum);
    UNROLL for (int i = 0; i < N * T; i++) UNROLL for (int half = 0; half < 2; half++)
        done[i][half] = sum[i][half];
    conv_finish(T, N, a, (size_t)image * a->y_image + (size_t)(ow * a->y_step), done);
}

#define IMAGES_CASE(t, n)                    \
    case (t) * (MOST_IMAGES + 1) + (n):      \
        conv_tile(t, n, WORDS, a, image, 0); \
        break;

/* A whole short row of several images. */
static void conv_short_row(const struct row *a, int images, int image)
{
    switch (a->W * (MOST_IMAGES + 1) + images) {
        IMAGES_CASE(1, 1)
        IMAGES_CASE(1, 2)
        IMAGES_CASE(1, 3)
        IMAGES_CASE(1, 4)
        IMAGES_CASE(1, 5)
        IMAGES_CASE(1, 6)
        IMAGES_CASE(2, 1)
        IMAGES_CASE(2, 2)
        IMAGES_CASE(2, 3)
        IMAGES_CASE(3, 1)
        IMAGES_CASE(3, 2)
#if VL == 16
        IMAGES_CASE(2, 4)
        IMAGES_CASE(2, 5)
        IMAGES_CASE(2, 6)
        IMAGES_CASE(3, 3)
        IMAGES_CASE(3, 4)
        IMAGES_CASE(4, 1)
        IMAGES_CASE(4, 2)
        IMAGES_CASE(4, 3)
        IMAGES_CASE(5, 1)
        IMAGES_CASE(5, 2)
        IMAGES_CASE(6, 1)
        IMAGES_CASE(6, 2)
#endif
    }
}

void conv_row(const struct row *a)
{
    int most = a->in.step == 1 || a->W == 0 ? 1 : at_most(MOST_IMAGES, TILE / a->W);
    for (int image = 0, N; most > 1 && image < a->images; image += N) {
        N = next_tile(a->images - image, most);
        conv_short_row(a, N, image);
    }
    for (int image = 0; most <= 1 && image < a->images; image++)
        for (int ow = 0, T; ow < a->W; ow += T) {
            T = next_tile(a->W - ow, TILE);
            if (a->in.step == 1)
                WITH_TILE(T, conv_tile, 1, 1, a, image, ow);
            else
                WITH_TILE(T, conv_tile, 1, WORDS, a, image, ow);
        }
}

/* Images, with bias, ReLU and pooling: a group some input blocks at a time, one image all
 * at once. */
static void conv_images(const struct conv_plan *p, struct own *own, int n, const float *x,
                        float *y, uint8_t *arg)
{
    int some, blocks = p->in.blocks, pad = p->s.pad;
    int many = p->group > 1 ? blocks_at_once(p->s.R * p->s.R) : blocks;
    bool pool = p->s.pool;
    size_t row_words = (size_t)(p->in.W * p->in.step);
    size_t pixels = (size_t)p->out.H * (size_t)p->out.W;
    struct row row = {.in = p->in,
                      .Q = p->s.R,
                      .W = p->full.W,
                      .images = n,
                      .x_step = p->in.step * p->stride,
                      .x_image = maps_words(p->in),
                      .w_block = (size_t)(p->s.R * p->s.R * p->in.step * BLOCK),
                      .w = (const float *)p->w};
    for (int kb = 0; kb < p->out.blocks; kb++, y += pixels * WORDS)
        for (int cb = 0; cb < blocks; cb += some, row.w += (size_t)some * row.w_block) {
            some = row.in.blocks = at_most(many, blocks - cb);
            bool end = cb + some == blocks;
            row.finish = (!end || pool ? FINISH_FLOATS : 0) |
                         (end && !p->s.bare ? FINISH_RELU : 0);
            row.y_step = end && !pool ? WORDS : BLOCK;
            row.y_image = end ? maps_words(p->out) : pixels * BLOCK;
            row.start_step = cb ? BLOCK : 0;
            row.start_image = cb ? pixels * BLOCK : 0;
            for (int oh = 0; oh < (pool ? p->out.H * 2 : p->out.H); oh++) {
                int h = oh * p->stride; /* with padding */
                size_t at = (size_t)((pool ? oh / 2 : oh) * p->out.W);
                row.first = h < pad ? pad - h : 0;
                row.last = at_most(p->s.R, pad + p->s.H - h);
                row.x = x + (size_t)(cb * p->in.H + h + row.first) * row_words;
                row.y = pool  ? own->rows + (oh % 2) * p->full.W * BLOCK
                        : end ? y + at * WORDS
                              : own->sum + at * BLOCK;
                row.start = cb ? own->sum + at * BLOCK : p->bias + kb * BLOCK;
                conv_row(&row);
                if (pool && oh % 2) {
                    pool_rows(own->rows, p->full.W, y + at * WORDS, arg);
                    arg += (size_t)p->out.W * BLOCK;
                }
            }
        }
}

const float *conv_input(const struct conv_plan *p, struct own *own, int n, const float *x)
{
    if (p->s.pad == 0)
        return x;
    size_t width = (size_t)(p->x.W * p->x.step), padded = (size_t)(p->in.W * p->in.step);
    float *to = own->x + (size_t)p->s.pad * (padded + (size_t)p->in.step);
    for (int b = 0; b < n * p->x.blocks; b++, to += (size_t)(2 * p->s.pad) * padded)
        for (int h = 0; h < p->x.H; h++, x += width, to += padded)
            memcpy(to, x, width * sizeof(float));
    return own->x;
}

struct call {
    struct conv_plan *p;
    int n;
    const float *x;
    float *y;
};

/* Converts an image from our layout to float planes. */
static void to_planes(const struct conv_plan *p, struct own *own, float *planes)
{
    size_t pixels = (size_t)p->out.H * (size_t)p->out.W;
    const float *from = own->pooled;
#if BF16
    float *floats = own->planes;
    for (size_t i = 0; i < pixels * (size_t)p->out.blocks; i++) {
        vec lo, hi;
        load_pixel(own->pooled + i * WORDS, &lo, &hi);
        store(floats + i * BLOCK, lo);
        store(floats + i * BLOCK + VL, hi);
    }
    from = floats;
#endif
    for (int k = 0; k < p->s.K; k += BLOCK)
        transpose(from + (size_t)k * pixels, BLOCK, (int)pixels,
                  at_most(BLOCK, p->s.K - k), planes + (size_t)k * pixels, pixels);
}

static void forward_part(int part, int parts, void *arg)
{
    const struct call *a = arg;
    struct conv_plan *p = a->p;
    struct own *own = &p->own[part];
    size_t in = maps_words(p->x), out = NAMED(conv_floats)(p);
    size_t args = (size_t)(p->out.blocks * p->out.H * p->out.W) * BLOCK;
    int from, to;
    pool_share(a->n, 1, part, parts, &from, &to);
    for (int b = from, n; b < to; b += n) {
        n = at_most(p->group, to - b);
        float *y = a->y + (size_t)b * out;
        const float *x = a->x + (size_t)b * in;
        float *target = p->s.last ? own->pooled : y;
        uint8_t *which = p->arg ? p->arg + (size_t)b * args : NULL;
        if (p->winograd)
            winograd_forward(p, own, n, x, target, which);
        else
            conv_images(p, own, n, conv_input(p, own, n, x), target, which);
        if (p->s.last)
            to_planes(p, own, y);
    }
}

void NAMED(conv)(struct conv_plan *p, int n, const float *x, const float *w,
                 const float *bias, float *y)
{
    struct conv_weights weights = {.p = p, .w = w};
    pool_run(conv_pack, &weights);
    if (bias)
        memcpy(p->bias, bias, (size_t)p->s.K * sizeof(float));
    struct call call = {.p = p, .n = n, .x = x, .y = y};
    pool_run(forward_part, &call);
}
