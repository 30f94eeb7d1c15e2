/* worker/kernels/vector_conv_back.c - the gradients of a convolution; vector_conv_impl.h
 * describes the method */
#include "worker/kernels/vector_winograd.h"

#include "worker/kernels/pool.h"

#include <string.h>

enum {
    PIXELS_AT_ONCE = 128
}; /* of dy in a dw pass: they and the pixels of x stay in L1 */

/* ---- dy ---- */

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

/* The gradient of n images before ReLU, in our layout, which it has between layers, where
 * it is already masked. */
static const float *unmask(const struct conv_plan *p, struct own *own, const float *y,
                           const float *dy, float scale)
{
    if (!p->s.last)
        return dy;
    float *planes = own->planes;
    size_t n = NAMED(conv_floats)(p);
    for (size_t i = 0; i < n; i++)
        planes[i] = y[i] > 0 ? dy[i] * scale : 0;
    from_planes(p, planes, own->dpairs, own->pooled);
    return own->pooled;
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

/* Scatters each gradient to the position of its maximum. */
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

/* The zeros around were written once, by the plan. */
static void spread(const struct conv_plan *p, int n, const float *g, float *dy)
{
    size_t width = (size_t)p->full.W * WORDS, to_row = (size_t)p->spread.W * WORDS;
    dy += p->P * WORDS;
    for (int row = 0; row < n * p->full.blocks * p->full.H; row++) {
        memcpy(dy, g, width * sizeof(float));
        dy += to_row;
        g += width;
    }
}

/* ---- dw ---- */

struct taps { /* some rows of dy, and their contribution to one block's dw in one kernel
                 row */
    int images, H, W;         /* rows of dy in each image; pixels, or pairs, per row */
    size_t x_image, dy_image; /* words from an image to the next */
    size_t x_row, dy_row;     /* from a row to the next */
    int x_step;               /* of x from a pixel or pair to the next */
    bool floats;              /* words of a first layer */
    bool fresh;               /* dw is empty */
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
        sum[j][0] = a->fresh ? (vec){0} : load(dw + j * BLOCK);
        sum[j][1] = a->fresh ? (vec){0} : load(dw + j * BLOCK + VL);
    }
    const float *x_image = a->x + i, *dy_image = a->dy;
    for (int n = 0; n < a->images; n++, x_image += a->x_image, dy_image += a->dy_image)
        for (int h = 0; h < a->H; h++) {
            const float *x = x_image + (size_t)h * a->x_row;
            const float *dy = dy_image + (size_t)h * a->dy_row;
            UNROLL_2 for (int ow = 0; ow < a->W; ow++)
            {
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
                x += x_step;
                dy += BLOCK;
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

/* Adds the contribution of some rows of dy to one block's dw; a->x and a->dy point to
 * the first of them. */
static void add_rows(const struct conv_plan *p, struct taps a, size_t x_block, float *dw)
{
    int taps = p->s.R * (p->s.first ? 1 : BLOCK);
    const float *x = a.x;
    for (int i = 0; i < p->in.blocks * p->s.R; i++) {
        int cb = i / p->s.R, r = i % p->s.R;
        a.x = x + (size_t)cb * x_block + (size_t)r * (a.x_row / (size_t)p->stride);
        a.dw = dw + (size_t)(i * taps) * BLOCK;
        taps_row(&a, taps);
    }
}

/* `all` has the strides; of whole images, a block is x_block and dy_block words. */
static void add_taps(const struct conv_plan *p, struct taps all, size_t x_block,
                     size_t dy_block, float *dw)
{
    int OH = p->full.H, n = all.images, W = at_most(PIXELS_AT_ONCE, p->full.W);
    int rows = at_most(OH, PIXELS_AT_ONCE / W);
    int pixels = OH * W + (VL == 8 ? p->in.H * p->in.W : OH * W); /* of dy and x */
    int images = rows < OH || pixels > 2 * PIXELS_AT_ONCE
                     ? 1
                     : at_most(n, 2 * PIXELS_AT_ONCE / pixels);
    for (int kb = 0; kb < p->full.blocks; kb++, dw += p->taps / (size_t)p->full.blocks)
        for (int b = 0; b < n; b += images)
            for (int oh = 0; oh < OH; oh += rows) {
                struct taps a = all;
                a.images = at_most(images, n - b);
                a.H = at_most(rows, OH - oh);
                a.fresh = all.fresh && b == 0 && oh == 0;
                a.x += (size_t)b * a.x_image + (size_t)oh * a.x_row;
                a.dy += (size_t)b * a.dy_image + (size_t)kb * dy_block +
                        (size_t)oh * a.dy_row;
                add_rows(p, a, x_block, dw);
            }
}

#if BF16

/* Pairs each pixel of x with the one `stride` further on; zeros behind the end of a
 * row. */
static void pair_input(const struct conv_plan *p, int n, const float *x, float *pairs)
{
    static const float zero[BLOCK];
    for (int row = 0; row < n * p->in.blocks * p->in.H; row++)
        for (int w = 0; w < p->in.W; w++, x += WORDS, pairs += BLOCK)
            pair_pixels(x, w + p->stride < p->in.W ? x + p->stride * WORDS : zero, pairs);
}

/* Rows of dy, `row` words apart: as pairs of pixels, or floats for a first layer. */
static void pair_gradient(const struct conv_plan *p, int n, const float *dy, size_t row,
                          size_t block, float *pairs)
{
    static const float zero[BLOCK];
    for (int i = 0; i < n * p->full.blocks * p->full.H; i++) {
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

/* `dy` is before pooling. */
static void image_taps(const struct conv_plan *p, struct own *own, int n, const float *x,
                       const struct view *dy)
{
    int step = p->in.step;
    size_t block = dy->block;
    struct taps a = {.images = n,
                     .W = p->full.W,
                     .dy_row = dy->row,
                     .floats = p->s.first,
                     .fresh = !own->begun,
                     .x = x,
                     .dy = dy->at};
#if BF16
    pair_gradient(p, n, dy->at, dy->row, block, own->dpairs);
    a.W = p->s.first ? p->full.W : words_of(p->full.W);
    a.dy = own->dpairs;
    a.dy_row = (size_t)a.W * BLOCK;
    block = a.dy_row * (size_t)p->full.H;
    if (!p->s.first) {
        pair_input(p, n, x, own->pairs);
        a.x = own->pairs;
        step = BLOCK;
    }
#endif
    a.x_step = step * p->stride * (p->s.first ? 1 : PER_WORD);
    a.x_row = (size_t)(p->in.W * step * p->stride);
    a.x_image = (size_t)(p->in.blocks * p->in.H * p->in.W * step);
    a.dy_image = block * (size_t)p->full.blocks;
    add_taps(p, a, (size_t)(p->in.H * p->in.W * step), block, own->dw);
    own->begun = true;
}

/* ---- dx ---- */

/* The parameters from dy that all rows of dx of these phases share. */
static struct row back_row(const struct conv_plan *p, int n, struct phase rows,
                           struct phase columns)
{
    struct row row = {.in = p->spread,
                      .Q = columns.taps,
                      .W = columns.count,
                      .images = n,
                      .x_step = WORDS,
                      .x_image = maps_words(p->spread)};
    row.w_block = (size_t)(p->s.R * p->s.R) * WORDS * BLOCK;
    row.w = (const float *)p->turned +
            (size_t)(rows.before * p->s.R + rows.taps * columns.before) * WORDS * BLOCK;
    return row;
}

struct dx_pass { /* a block of dx from some blocks of dy, from kb on */
    const struct conv_plan *p;
    struct own *own;
    int n, kb, some;
    const float *x; /* the mask */
    float *dx;      /* output: the first image's block */
    size_t weights; /* words before this phase's weights */
};

static void back_phase(const struct dx_pass *a, struct phase rows, struct phase columns)
{
    static const float zero[BLOCK];
    const struct conv_plan *p = a->p;
    if (p->s.adds && rows.taps * columns.taps == 0)
        return;
    int s = p->stride, H = p->spread.H;
    size_t sums = (size_t)(p->x.H * p->x.W) * BLOCK;
    bool end = a->kb + a->some == p->spread.blocks;
    struct row row = back_row(p, a->n, rows, columns);
    row.in.blocks = a->some;
    row.w += a->weights;
    row.finish = end ? back_finish(p) : FINISH_FLOATS;
    row.y_step = s * (end ? WORDS : BLOCK);
    row.y_image = end ? maps_words(p->x) : sums;
    row.start_step = a->kb ? s * BLOCK : 0;
    row.start_image = a->kb ? sums : 0;
    for (int i = 0; i < rows.count; i++) {
        int h = rows.at + i; /* of dy */
        size_t at = (size_t)((rows.first + i * s) * p->x.W + columns.first);
        row.first = h < 0 ? -h : 0;
        row.last = at_most(rows.taps, H - h);
        row.x = a->own->dy +
                (size_t)((a->kb * H + h + row.first) * p->spread.W + p->P + columns.at) *
                    WORDS;
        row.y = end ? a->dx + at * WORDS : a->own->sum + at * BLOCK;
        row.start = a->kb ? a->own->sum + at * BLOCK : zero;
        row.mask = a->x + at * WORDS;
        conv_row(&row);
    }
}

/* dx of n images from their gradients, padded with zeros: some blocks of dy at a time,
 * so that the weights stay in the first-level cache while all rows are processed. */
static void back_images(const struct conv_plan *p, struct own *own, int n, const float *x,
                        float *dx)
{
    size_t block = (size_t)(p->x.H * p->x.W) * WORDS;
    int phases = p->stride * p->stride, many = blocks_at_once(p->s.R * p->s.R / phases);
    struct dx_pass a = {.p = p, .own = own, .n = n, .x = x, .dx = dx};
    for (int cb = 0; cb < p->x.blocks; cb++, a.x += block, a.dx += block)
        for (a.kb = 0; a.kb < p->spread.blocks; a.kb += a.some) {
            a.some = at_most(many, p->spread.blocks - a.kb);
            for (int i = 0; i < phases; i++)
                back_phase(&a, phase_of(p, i / p->stride, p->x.H),
                           phase_of(p, i % p->stride, p->x.W));
            a.weights += (size_t)(a.some * p->s.R * p->s.R) * WORDS * BLOCK;
        }
}

/* ---- all of it ---- */

struct call {
    struct conv_plan *p;
    int n;
    const float *x, *y, *dy;
    float *dx, scale;
};

/* Images [b, b + n) */
static void back_group(const struct call *a, struct own *own, int b, int n)
{
    const struct conv_plan *p = a->p;
    size_t in = maps_words(p->x), out = NAMED(conv_floats)(p);
    size_t args = (size_t)(p->out.blocks * p->out.H * p->out.W) * BLOCK;
    const float *x = a->x + (size_t)b * in;
    const float *g =
        unmask(p, own, a->y + (size_t)b * out, a->dy + (size_t)b * out, a->scale);
    for (int i = 0; i < n && !p->s.bare; i++)
        add_bias(p, g + (size_t)i * out, own->dbias);
    struct view grad = view_of(p->full, g);
    if (p->s.pool) {
        unpool(p, g, p->arg + (size_t)b * args, own->dy);
        grad = view_of(p->spread, own->dy + p->P * WORDS);
        grad.H = p->full.H;
        grad.W = p->full.W;
    }
    if (p->winograd) {
        winograd_taps(p, own, n, x, &grad);
        if (a->dx)
            winograd_back(p, own, n, x, &grad, a->dx + (size_t)b * in);
        return;
    }
    if (!p->s.pool && a->dx)
        spread(p, n, g, own->dy);
    const float *padded = conv_input(p, own, n, x);
    image_taps(p, own, n, padded, &grad);
    if (a->dx)
        back_images(p, own, n, x, a->dx + (size_t)b * in);
}

static void back_part(int part, int parts, void *arg)
{
    const struct call *a = arg;
    struct conv_plan *p = a->p;
    struct own *own = &p->own[part];
    int from, to;
    memset(own->dbias, 0, (size_t)p->out.blocks * BLOCK * sizeof(float));
    pool_share(a->n, 1, part, parts, &from, &to);
    own->begun = false;
    if (from == to)
        memset(own->dw, 0, p->taps * sizeof(float));
    for (int b = from; b < to; b += p->group)
        back_group(a, own, b, at_most(p->group, to - b));
}

void NAMED(conv_back)(struct conv_plan *p, int n, const float *x, const float *w,
                      const float *y, const float *dy, float scale, float *dw,
                      float *dbias, float *dx)
{
    struct conv_weights weights = {.p = p, .w = w, .dw = dw};
    if (dx)
        pool_run(conv_turn, &weights);
    struct call call = {
        .p = p, .n = n, .x = x, .y = y, .dy = dy, .dx = dx, .scale = scale};
    pool_run(back_part, &call);
    struct own *sum = &p->own[0];
    for (int i = 1; i < p->threads; i++)
        for (int k = 0; k < p->s.K; k++)
            sum->dbias[k] += p->own[i].dbias[k];
    pool_run(conv_unpack, &weights);
    if (dbias)
        memcpy(dbias, sum->dbias, (size_t)p->s.K * sizeof(float));
}
