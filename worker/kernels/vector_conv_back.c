/* worker/kernels/vector_conv_back.c - the gradients of a convolution; how it is done
 * stands in vector_conv.h */
#include "worker/kernels/vector_conv.h"

#include "worker/kernels/pool.h"

#include <string.h>

enum { ROWS_AT_ONCE = 4 }; /* of dy in a dw pass: they and their rows of x stay in L1 */

/* ---- packed weights ---- */

/* For dx: k and c change places, and the kernel is turned around. */
static void pack_turned(const struct conv_plan *p, const float *w)
{
    int R = p->s.R;
    for (int k = 0; k < p->s.K; k++)
        for (int c = 0; c < p->s.C; c++) {
            size_t row = (size_t)((c / BLOCK * p->full.blocks + k / BLOCK) * R);
            size_t at = (row * (size_t)(R * WORDS) + (size_t)(k % BLOCK / PER_WORD)) *
                            (size_t)(BLOCK * PER_WORD) +
                        (size_t)(c % BLOCK * PER_WORD + k % PER_WORD);
            for (int i = R * R - 1; i >= 0; i--)
                p->turned[at + (size_t)(i * BLOCK * BLOCK)] = to_elem(*w++);
        }
}

static void unpack(const struct conv_plan *p, const float *packed, float *w)
{
    int R = p->s.R, step = p->s.first ? 1 : BLOCK;
    for (int k = 0; k < p->s.K; k++)
        for (int c = 0; c < p->s.C; c++) {
            size_t row = (size_t)((k / BLOCK * p->in.blocks + c / step) * R);
            const float *from = packed +
                                (row * (size_t)(R * step) + (size_t)(c % step)) * BLOCK +
                                k % BLOCK;
            for (int i = 0; i < R * R; i++, from += step * BLOCK)
                *w++ = *from;
        }
}

/* ---- dy on its way in ---- */

/* One image of fp32 planes to our layout. */
static void from_planes(const struct conv_plan *p, const float *planes, float *floats,
                        float *words)
{
    size_t pixels = (size_t)p->out.H * (size_t)p->out.W;
    float *to = PER_WORD == 1 ? words : floats;
    if (p->s.K % BLOCK) /* missing channels stay zero */
        memset(to, 0, pixels * (size_t)p->out.blocks * BLOCK * sizeof(float));
    for (int k = 0; k < p->s.K; k += BLOCK)
        transpose(planes + (size_t)k * pixels, pixels, at_most(BLOCK, p->s.K - k),
                  (int)pixels, to + (size_t)k * pixels, BLOCK);
    for (size_t i = 0; to != words && i < pixels * (size_t)p->out.blocks; i++)
        store_pixel(words + i * WORDS, load(to + i * BLOCK), load(to + i * BLOCK + VL));
}

/* One image's gradient before ReLU, in our layout. Between layers it comes masked. */
static const float *unmask(const struct conv_plan *p, struct own *own, const float *y,
                           const float *dy, float scale)
{
    size_t pixels = (size_t)p->out.H * (size_t)p->out.W;
    float *g = own->pooled;
    if (!p->s.last && scale == 1)
        return dy;
    if (!p->s.last) {
        for (size_t i = 0; i < pixels * (size_t)p->out.blocks; i++) {
            vec lo, hi;
            load_pixel(dy + i * WORDS, &lo, &hi);
            store_pixel(g + i * WORDS, lo * scale, hi * scale);
        }
        return g;
    }
    for (size_t i = 0; i < pixels * (size_t)p->s.K; i++)
        own->planes[i] = y[i] > 0 ? dy[i] * scale : 0;
    from_planes(p, own->planes, own->dpairs, g);
    return g;
}

static void add_bias(const struct conv_plan *p, const float *g, float *dbias)
{
    size_t pixels = (size_t)p->out.H * (size_t)p->out.W;
    for (int kb = 0; kb < p->out.blocks; kb++, dbias += BLOCK) {
        vec lo = load(dbias), hi = load(dbias + VL), g_lo, g_hi;
        for (size_t i = 0; i < pixels; i++, g += WORDS) {
            load_pixel(g, &g_lo, &g_hi);
            lo += g_lo;
            hi += g_hi;
        }
        store(dbias, lo);
        store(dbias + VL, hi);
    }
}

/* Into the spread image, each to the place its maximum came from. */
static void unpool(const struct conv_plan *p, const float *words, const uint8_t *arg,
                   float *dy)
{
    const elem *g = (const elem *)words;
    int wide = p->spread.W * BLOCK;
    for (int row = 0; row < p->out.blocks * p->out.H; row++) {
        int kb = row / p->out.H, i = row % p->out.H;
        elem *to = (elem *)dy + (kb * p->spread.H + 2 * i) * wide + p->P * BLOCK;
        for (int j = 0; j < p->out.W; j++, to += 2 * BLOCK, g += BLOCK, arg += BLOCK)
            for (int c = 0; c < BLOCK; c++) {
                to[c] = arg[c] == 0 ? g[c] : 0;
                to[BLOCK + c] = arg[c] == 1 ? g[c] : 0;
                to[wide + c] = arg[c] == 2 ? g[c] : 0;
                to[wide + BLOCK + c] = arg[c] == 3 ? g[c] : 0;
            }
    }
}

/* The zeros between and around are there from the beginning. */
static void spread(const struct conv_plan *p, const float *g, float *dy)
{
    size_t width = (size_t)p->full.W * WORDS, to_row = (size_t)p->spread.W * WORDS;
    dy += p->P * WORDS;
    for (int kb = 0; kb < p->full.blocks; kb++, dy += to_row * (size_t)p->spread.H)
        for (int h = 0; h < p->full.H; h++, g += width) {
            float *to = dy + (size_t)(h * p->stride) * to_row;
            if (p->stride == 1)
                memcpy(to, g, width * sizeof(float));
            for (int w = 0; p->stride > 1 && w < p->full.W; w++)
                memcpy(to + w * p->stride * WORDS, g + w * WORDS, WORDS * sizeof(float));
        }
}

/* ---- dw ---- */

struct taps { /* some rows of dy, and what they add to one block's dw in one kernel row */
    int H, W; /* rows of dy; pixels, or pairs of them, in each */
    size_t x_row, dy_row; /* words from a row to the next, */
    int x_step;           /* and of x from a pixel or pair to the next */
    bool floats;          /* a first layer's words */
    const float *x, *dy;
    float *dw; /* [R*channels][BLOCK] */
};

ALWAYS void taps_tile(int T, bool floats, const struct taps *a, int i)
{
    vec sum[TILE_MAX][2];
    float *dw = a->dw + i * BLOCK;
    int x_step = a->x_step;
    UNROLL for (int j = 0; j < T; j++)
    {
        sum[j][0] = load(dw + j * BLOCK);
        sum[j][1] = load(dw + j * BLOCK + VL);
    }
    for (int h = 0; h < a->H; h++) {
        const float *x = a->x + (size_t)h * a->x_row + i;
        const float *dy = a->dy + (size_t)h * a->dy_row;
        for (int ow = 0; ow < a->W; ow++, x += x_step, dy += BLOCK) {
            vec lo = load(dy), hi = load(dy + VL);
            UNROLL for (int j = 0; j < T; j++)
            {
                if (floats) {
                    sum[j][0] += x[j] * lo;
                    sum[j][1] += x[j] * hi;
                } else {
                    sum[j][0] = multiply_add(sum[j][0], x[j], lo);
                    sum[j][1] = multiply_add(sum[j][1], x[j], hi);
                }
            }
        }
    }
    UNROLL for (int j = 0; j < T; j++)
    {
        store(dw + j * BLOCK, sum[j][0]);
        store(dw + j * BLOCK + VL, sum[j][1]);
    }
}

static void taps_row(const struct taps *a, int taps)
{
    for (int i = 0, T; i < taps; i += T) {
        T = next_tile(taps - i, TILE);
        if (a->floats)
            WITH_TILE(T, taps_tile, true, a, i);
        else
            WITH_TILE(T, taps_tile, false, a, i);
    }
}

/* `a` has the distances; a->x and a->dy are those of whole images, a block of which is
 * x_block and dy_block words. */
static void add_taps(const struct conv_plan *p, struct taps a, size_t x_block,
                     size_t dy_block, float *dw)
{
    int taps = p->s.R * (p->s.first ? 1 : BLOCK), OH = p->full.H;
    const float *x = a.x, *dy = a.dy;
    for (int kb = 0; kb < p->full.blocks; kb++)
        for (int oh = 0; oh < OH; oh += ROWS_AT_ONCE)
            for (int i = 0; i < p->in.blocks * p->s.R; i++) {
                int cb = i / p->s.R, r = i % p->s.R;
                a.H = at_most(ROWS_AT_ONCE, OH - oh);
                a.x = x + (size_t)cb * x_block +
                      (size_t)(oh * p->stride + r) * (a.x_row / (size_t)p->stride);
                a.dy = dy + (size_t)kb * dy_block + (size_t)oh * a.dy_row;
                a.dw = dw + (size_t)((kb * p->in.blocks * p->s.R + i) * taps) * BLOCK;
                taps_row(&a, taps);
            }
}

#if BF16

/* Each pixel of x with the one `stride` further on; behind the end of a row, zeros. */
static void pair_input(const struct conv_plan *p, const float *x, float *pairs)
{
    static const float zero[BLOCK];
    for (int row = 0; row < p->in.blocks * p->in.H; row++)
        for (int w = 0; w < p->in.W; w++, x += WORDS, pairs += BLOCK)
            pair_pixels(x, w + p->stride < p->in.W ? x + p->stride * WORDS : zero, pairs);
}

/* Rows of dy, `row` words apart: pairs of pixels, or floats for a first layer. */
static void pair_gradient(const struct conv_plan *p, const float *dy, size_t row,
                          size_t block, float *pairs)
{
    static const float zero[BLOCK];
    for (int i = 0; i < p->full.blocks * p->full.H; i++) {
        const float *g =
            dy + (size_t)(i / p->full.H) * block + (size_t)(i % p->full.H) * row;
        for (int w = 0; w < p->full.W && !p->s.first; w += 2, pairs += BLOCK)
            pair_pixels(g + w * WORDS, w + 1 < p->full.W ? g + (w + 1) * WORDS : zero,
                        pairs);
        for (int w = 0; w < p->full.W && p->s.first; w++, pairs += BLOCK) {
            vec lo, hi;
            load_pixel(g + w * WORDS, &lo, &hi);
            store(pairs, lo);
            store(pairs + VL, hi);
        }
    }
}

#endif

/* `dy` is the first pixel of block 0 before pooling, not spread; its rows are `row` words
 * apart, its blocks `block`. */
static void image_taps(const struct conv_plan *p, struct own *own, const float *x,
                       const float *dy, size_t row, size_t block)
{
    int step = p->in.step;
    struct taps a = {
        .W = p->full.W, .dy_row = row, .floats = p->s.first, .x = x, .dy = dy};
#if BF16
    pair_gradient(p, dy, row, block, own->dpairs);
    a.W = p->s.first ? p->full.W : words_of(p->full.W);
    a.dy = own->dpairs;
    a.dy_row = (size_t)a.W * BLOCK;
    block = a.dy_row * (size_t)p->full.H;
    if (!p->s.first) {
        pair_input(p, x, own->pairs);
        a.x = own->pairs;
        step = BLOCK;
    }
#endif
    a.x_step = step * p->stride * (p->s.first ? 1 : PER_WORD);
    a.x_row = (size_t)(p->in.W * step * p->stride);
    add_taps(p, a, (size_t)(p->in.H * p->in.W * step), block, own->dw);
}

/* ---- dx ---- */

/* dx of one image from its spread gradient: some blocks of dy at a time, so that their
 * weights stay in the first cache while all rows go by. */
static void back_image(const struct conv_plan *p, struct own *own, const float *x,
                       float *dx)
{
    static const float zero[BLOCK];
    int R = p->s.R, P = p->P, H = p->spread.H, blocks = p->spread.blocks, some;
    size_t from = (size_t)p->spread.W * WORDS, to = (size_t)p->x.W * WORDS;
    size_t sum_row = (size_t)p->x.W * BLOCK;
    struct row row = {.in = p->spread, .R = R, .W = p->x.W, .x_step = WORDS};
    row.w = (const float *)p->turned;
    for (int cb = 0; cb < p->x.blocks; cb++, x += p->x.H * to, dx += p->x.H * to)
        for (int kb = 0; kb < blocks; kb += some, row.w += some * R * R * WORDS * BLOCK) {
            some = row.in.blocks = at_most(PER_WORD, blocks - kb);
            bool end = kb + some == blocks;
            for (int h = 0; h < p->x.H; h++) {
                row.first = h < P ? P - h : 0;
                row.last = at_most(R, P + H - h);
                row.x = own->dy + (size_t)(kb * H + h - P + row.first) * from;
                row.y = end ? dx + (size_t)h * to : own->sum + (size_t)h * sum_row;
                row.start = kb ? own->sum + (size_t)h * sum_row : zero;
                row.start_step = kb ? BLOCK : 0;
                row.mask = x + (size_t)h * to;
                row.finish = !end        ? FINISH_FLOATS
                             : p->s.adds ? FINISH_ADD
                             : p->s.bare ? 0
                                         : FINISH_MASK;
                conv_row(&row);
            }
        }
}

/* ---- all of it ---- */

struct call {
    struct conv_plan *p;
    int n;
    const float *x, *y, *dy;
    float *dx, scale;
};

static void back_part(int part, int parts, void *arg)
{
    const struct call *a = arg;
    struct conv_plan *p = a->p;
    struct own *own = &p->own[part];
    size_t in = maps_words(p->x), out = NAMED(conv_floats)(p);
    size_t args = (size_t)(p->out.blocks * p->out.H * p->out.W) * BLOCK;
    size_t wide = (size_t)p->spread.W * WORDS, dense = (size_t)p->full.W * WORDS;
    int from, to;
    memset(own->dw, 0, p->taps * sizeof(float));
    memset(own->dbias, 0, (size_t)p->out.blocks * BLOCK * sizeof(float));
    pool_share(a->n, 1, part, parts, &from, &to);
    for (int b = from; b < to; b++) {
        const float *x = a->x + (size_t)b * in;
        const float *g =
            unmask(p, own, a->y + (size_t)b * out, a->dy + (size_t)b * out, a->scale);
        if (!p->s.bare)
            add_bias(p, g, own->dbias);
        if (p->s.pool)
            unpool(p, g, p->arg + (size_t)b * args, own->dy);
        else if (a->dx)
            spread(p, g, own->dy);
        const float *padded = conv_input(p, own, x);
        if (p->s.pool)
            image_taps(p, own, padded, own->dy + p->P * WORDS, wide,
                       wide * (size_t)p->spread.H);
        else
            image_taps(p, own, padded, g, dense, dense * (size_t)p->full.H);
        if (a->dx)
            back_image(p, own, x, a->dx + (size_t)b * in);
    }
}

void NAMED(conv_back)(struct conv_plan *p, int n, const float *x, const float *w,
                      const float *y, const float *dy, float scale, float *dw,
                      float *dbias, float *dx)
{
    if (dx)
        pack_turned(p, w);
    struct call call = {
        .p = p, .n = n, .x = x, .y = y, .dy = dy, .dx = dx, .scale = scale};
    pool_run(back_part, &call);
    struct own *sum = &p->own[0];
    for (int i = 1; i < p->threads; i++) {
        for (size_t j = 0; j < p->taps; j++)
            sum->dw[j] += p->own[i].dw[j];
        for (int k = 0; k < p->s.K; k++)
            sum->dbias[k] += p->own[i].dbias[k];
    }
    unpack(p, sum->dw, dw);
    if (dbias)
        memcpy(dbias, sum->dbias, (size_t)p->s.K * sizeof(float));
}
