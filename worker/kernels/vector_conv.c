/* worker/kernels/vector_conv.c - convolution with ReLU and pooling: plan and forward; how
 * it is done stands in vector_conv.h */
#include "worker/kernels/vector_conv.h"

#include "common/mem.h"
#include "worker/kernels/pool.h"
#include "worker/kernels/scratch.h"

#include <stdlib.h>
#include <string.h>

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
    p->P = s->R - 1 - s->pad;
    int dense = p->P + (OW - 1) * p->stride + 1 + p->P, read = s->W + s->R - 1;
    p->spread = (struct maps){kblocks, WORDS, (OH - 1) * p->stride + 1,
                              dense > read ? dense : read};
    p->taps = (size_t)(kblocks * BLOCK) * (size_t)(s->R * s->R) *
              (size_t)(s->first ? s->C : p->in.blocks * BLOCK);
}

static void plan_own(const struct conv_plan *p, struct own *o)
{
    bool pairs = PER_WORD > 1 && !p->s.first;
    size_t pixels = (size_t)p->full.H * (size_t)p->full.W;
    if (p->s.pad)
        o->x = scratch(maps_words(p->in));
    o->rows = scratch((size_t)(2 * p->full.W) * BLOCK);
    o->pooled = scratch(maps_words(p->out));
    o->planes = scratch((size_t)p->out.blocks * BLOCK * pixels);
    o->dy = scratch(maps_words(p->spread));
    if (pairs)
        o->pairs = scratch((size_t)(p->in.blocks * p->in.H * p->in.W) * BLOCK);
    if (PER_WORD > 1)
        o->dpairs = scratch((size_t)p->full.blocks * pixels * BLOCK);
    if (!p->s.first)
        o->sum = scratch((size_t)(p->s.H * p->s.W) * BLOCK);
    o->dw = scratch(p->taps);
    o->dbias = scratch((size_t)p->full.blocks * BLOCK);
}

struct conv_plan *NAMED(conv_plan)(struct conv_shape s, struct ddp_err *err)
{
    struct conv_plan *p = xcalloc(1, sizeof(*p));
    p->s = s;
    p->stride = s.stride ? s.stride : 1;
    plan_maps(p);
    p->w = (elem *)scratch(p->taps);
    p->turned = (elem *)scratch(p->taps);
    p->bias = scratch((size_t)p->full.blocks * BLOCK);
    if (s.pool)
        p->arg =
            xcalloc((size_t)s.B, (size_t)(p->out.blocks * p->out.H * p->out.W) * BLOCK);
    p->threads = pool_threads();
    p->own = xcalloc((size_t)p->threads, sizeof(*p->own));
    for (int i = 0; i < p->threads; i++)
        plan_own(p, &p->own[i]);
    return p;
}

void NAMED(conv_plan_free)(struct conv_plan *p)
{
    if (p == NULL)
        return;
    for (int i = 0; i < p->threads; i++) {
        struct own *o = &p->own[i];
        float *all[] = {o->x,     o->rows,   o->pooled, o->planes, o->dy,
                        o->pairs, o->dpairs, o->sum,    o->dw,     o->dbias};
        for (size_t j = 0; j < ARRAY_LEN(all); j++)
            free(all[j]);
    }
    free(p->own);
    free(p->w);
    free(p->turned);
    free(p->bias);
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

/* The first number of w[k][c] among packed weights; those of [r][q] lie at fixed
 * distances from it. A first layer's are float. */
static void pack(const struct conv_plan *p, const float *w)
{
    int R = p->s.R, step = p->s.first ? 1 : BLOCK, per = p->s.first ? 1 : PER_WORD;
    for (int k = 0; k < p->s.K; k++)
        for (int c = 0; c < p->s.C; c++) {
            size_t row = (size_t)((k / BLOCK * p->in.blocks + c / step) * R);
            size_t at = (row * (size_t)(R * step / per) + (size_t)(c % step / per)) *
                            (size_t)(BLOCK * per) +
                        (size_t)(k % BLOCK * per + c % per);
            for (int i = 0; i < R * R; i++, w++, at += (size_t)(step * BLOCK)) {
                if (p->s.first)
                    ((float *)p->w)[at] = *w;
                else
                    p->w[at] = to_elem(*w);
            }
        }
}

ALWAYS void conv_sums(int T, int step, const struct row *a, int ow, vec sum[][2])
{
    int taps = a->R * step, x_step = a->x_step;
    for (int b = 0; b < a->in.blocks; b++)
        for (int r = a->first; r < a->last; r++) {
            const float *x =
                a->x + (b * a->in.H + r - a->first) * a->in.W * step + ow * x_step;
            const float *w = a->w + (b * a->R + r) * taps * BLOCK;
            for (int i = 0; i < taps; i++, w += BLOCK) {
                vec lo = load(w), hi = load(w + VL);
                UNROLL for (int j = 0; j < T; j++)
                {
                    float word = x[i + j * x_step];
                    if (step == 1) {
                        sum[j][0] += word * lo;
                        sum[j][1] += word * hi;
                    } else {
                        sum[j][0] = multiply_add(sum[j][0], word, lo);
                        sum[j][1] = multiply_add(sum[j][1], word, hi);
                    }
                }
            }
        }
}

ALWAYS void conv_pixel(const struct row *a, int ow, vec lo, vec hi)
{
    float *y = a->y + ow * (a->finish & FINISH_FLOATS ? BLOCK : WORDS);
    vec a_lo, a_hi;
    if (a->finish & FINISH_ADD) {
        load_pixel(y, &a_lo, &a_hi);
        lo += a_lo;
        hi += a_hi;
    }
    if (a->finish & FINISH_RELU) {
        lo = positive(lo);
        hi = positive(hi);
    }
    if (a->finish & FINISH_MASK) {
        load_pixel(a->mask + ow * WORDS, &a_lo, &a_hi);
        lo = where_positive(a_lo, lo);
        hi = where_positive(a_hi, hi);
    }
    if (a->finish & FINISH_FLOATS) {
        store(y, lo);
        store(y + VL, hi);
    } else {
        store_pixel(y, lo, hi);
    }
}

ALWAYS void conv_tile(int T, int step, const struct row *a, int ow)
{
    vec sum[TILE_MAX][2];
    const float *start = a->start + ow * a->start_step;
    UNROLL for (int j = 0; j < T; j++, start += a->start_step)
    {
        sum[j][0] = load(start);
        sum[j][1] = load(start + VL);
    }
    conv_sums(T, step, a, ow, sum);
    UNROLL for (int j = 0; j < T; j++) conv_pixel(a, ow + j, sum[j][0], sum[j][1]);
}

void conv_row(const struct row *a)
{
    for (int ow = 0, T; ow < a->W; ow += T) {
        T = next_tile(a->W - ow, TILE);
        if (a->in.step == 1)
            WITH_TILE(T, conv_tile, 1, a, ow);
        else
            WITH_TILE(T, conv_tile, WORDS, a, ow);
    }
}

/* Two rows to one: the first of equal maxima, in row order, as PyTorch takes it; like
 * there, not-a-number counts as more than any number. */
static void pool_rows(const float *rows, int W, float *y, uint8_t *arg)
{
    for (int j = 0; j < W / 2; j++, rows += BLOCK, y += WORDS) {
        vec best[2];
        for (int half = 0; half < 2; half++, rows += VL, arg += VL) {
            const float *under = rows + W * BLOCK;
            vec a = load(rows), b = load(rows + BLOCK);
            vec d = load(under), e = load(under + BLOCK);
            bits right = (b > a) | (b != b), low_right = (e > d) | (e != e);
            vec top = pick(right, b, a), low = pick(low_right, e, d);
            bits below = (low > top) | (low != low);
            bits which = (below & (2 - low_right)) | (~below & -right); /* true is -1 */
            best[half] = pick(below, low, top);
            *(loose_byte_lanes *)arg = __builtin_convertvector(which, byte_lanes);
        }
        store_pixel(y, best[0], best[1]);
    }
}

static void conv_image(const struct conv_plan *p, struct own *own, const float *x,
                       float *y, uint8_t *arg)
{
    size_t in_row = (size_t)(p->in.W * p->in.step * p->stride);
    size_t out_row = (size_t)p->out.W * WORDS;
    const float *weights = (const float *)p->w;
    size_t block = p->taps / (size_t)p->out.blocks / (size_t)(p->s.first ? 1 : PER_WORD);
    for (int kb = 0; kb < p->out.blocks; kb++)
        for (int oh = 0; oh < (p->s.pool ? p->out.H * 2 : p->out.H); oh++) {
            float *of_pair = own->rows + (oh % 2) * p->full.W * BLOCK;
            struct row row = {.in = p->in,
                              .R = p->s.R,
                              .last = p->s.R,
                              .W = p->full.W,
                              .x_step = p->in.step * p->stride,
                              .x = x + (size_t)oh * in_row,
                              .w = weights + (size_t)kb * block,
                              .start = p->bias + kb * BLOCK,
                              .finish = (p->s.bare ? 0 : FINISH_RELU) |
                                        (p->s.pool ? FINISH_FLOATS : 0),
                              .y = p->s.pool ? of_pair : y};
            conv_row(&row);
            if (!p->s.pool) {
                y += out_row;
            } else if (oh % 2) {
                pool_rows(own->rows, p->full.W, y, arg);
                y += out_row;
                arg += (size_t)p->out.W * BLOCK;
            }
        }
}

const float *conv_input(const struct conv_plan *p, struct own *own, const float *x)
{
    if (p->s.pad == 0)
        return x;
    size_t width = (size_t)(p->x.W * p->x.step), padded = (size_t)(p->in.W * p->in.step);
    float *to = own->x + (size_t)p->s.pad * (padded + (size_t)p->in.step);
    for (int b = 0; b < p->x.blocks; b++, to += (size_t)(2 * p->s.pad) * padded)
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

/* An image in our layout as floats, channel after channel. */
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
    for (int b = from; b < to; b++) {
        float *y = a->y + (size_t)b * out;
        conv_image(p, own, conv_input(p, own, a->x + (size_t)b * in),
                   p->s.last ? own->pooled : y,
                   p->arg ? p->arg + (size_t)b * args : NULL);
        if (p->s.last)
            to_planes(p, own, y);
    }
}

void NAMED(conv)(struct conv_plan *p, int n, const float *x, const float *w,
                 const float *bias, float *y)
{
    pack(p, w);
    if (bias)
        memcpy(p->bias, bias, (size_t)p->s.K * sizeof(float));
    struct call call = {.p = p, .n = n, .x = x, .y = y};
    pool_run(forward_part, &call);
}
