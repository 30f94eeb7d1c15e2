/* worker/kernels/vector_conv.c - direct convolution with ReLU and pooling, image by image
 *
 * Layout. Images between layers lie as [channels/BLOCK][H][W][BLOCK]: BLOCK channels of a
 * pixel side by side, missing channels zero. `step` is how far a pixel is from the next:
 * BLOCK there, 1 in the first layer's NCHW input, whose channels then count as blocks of
 * one. In both, what a kernel row of R pixels covers is R*step floats in a row, and so
 * each pass is a loop over those, whatever R is:
 *
 *   forward   y[oh,ow,:] += x[oh+r, ow*step + i] * w[r][i][:]        T pixels at a time
 *   dx        the same over dy, padded by R-1 columns of zeros, with w turned around
 *   dw        dw[r][i][:] += x[oh+r, ow*step + i] * dy[oh,ow,:]      T taps i at a time
 *
 * An image goes through all its passes before the next one comes, so that what stands
 * between them (the rows before pooling, the unpooled gradient) never leaves the cache.
 * Threads share out the images; each has its own dw, added up in their order.
 */
#include "common/mem.h"
#include "worker/kernels/pool.h"
#include "worker/kernels/scratch.h"
#include "worker/kernels/vector.h"

#include <stdlib.h>
#include <string.h>

enum { ROWS_AT_ONCE = 4 }; /* of dy in a dw pass: they and their rows of x stay in L1 */

/* A set of images in one of the layouts. */
struct maps {
    int blocks, step, H, W;
};

struct conv_plan {
    struct conv_shape s;
    struct maps in, full, out, padded; /* x; before and after pooling; dy for dx */
    size_t taps;                       /* floats of packed weights */
    int threads;
    float *w, *turned, *bias; /* packed: [K/BLOCK][in.blocks][R][R*step][BLOCK] */
    uint8_t *arg;             /* as out, per image: which of the four was the maximum */
    struct own *own;          /* per thread */
};

struct own {
    float *rows;   /* two rows before pooling */
    float *pooled; /* one image of y, or of its gradient, in our layout */
    float *planes; /* one image of its gradient in NCHW */
    float *dy;     /* one image of the gradient before pooling, padded */
    float *dw, *dbias;
};

static size_t maps_floats(struct maps m)
{
    return (size_t)m.blocks * (size_t)m.H * (size_t)m.W * (size_t)m.step;
}

struct conv_plan *NAMED(conv_plan)(struct conv_shape s, struct ddp_err *err)
{
    struct conv_plan *p = xcalloc(1, sizeof(*p));
    int OH = s.H - s.R + 1, OW = s.W - s.R + 1, kblocks = round_up(s.K, BLOCK) / BLOCK;
    p->s = s;
    p->in = s.first ? (struct maps){s.C, 1, s.H, s.W}
                    : (struct maps){round_up(s.C, BLOCK) / BLOCK, BLOCK, s.H, s.W};
    p->full = (struct maps){kblocks, BLOCK, OH, OW};
    p->out = s.pool ? (struct maps){kblocks, BLOCK, OH / 2, OW / 2} : p->full;
    p->padded = (struct maps){kblocks, BLOCK, OH, OW + 2 * (s.R - 1)};
    p->taps = (size_t)kblocks * BLOCK * (size_t)(p->in.blocks * p->in.step * s.R * s.R);
    p->w = scratch(p->taps);
    p->turned = scratch(p->taps);
    p->bias = scratch((size_t)kblocks * BLOCK);
    if (s.pool)
        p->arg = xcalloc((size_t)s.B, maps_floats(p->out));
    p->threads = pool_threads();
    p->own = xcalloc((size_t)p->threads, sizeof(*p->own));
    for (int i = 0; i < p->threads; i++) {
        struct own *o = &p->own[i];
        o->rows = scratch((size_t)(2 * OW) * BLOCK);
        o->pooled = scratch(maps_floats(p->out));
        o->planes = scratch(maps_floats(p->out));
        o->dy = scratch(maps_floats(p->padded));
        o->dw = scratch(p->taps);
        o->dbias = scratch((size_t)kblocks * BLOCK);
    }
    return p;
}

void NAMED(conv_plan_free)(struct conv_plan *p)
{
    if (p == NULL)
        return;
    for (int i = 0; i < p->threads; i++) {
        free(p->own[i].rows);
        free(p->own[i].pooled);
        free(p->own[i].planes);
        free(p->own[i].dy);
        free(p->own[i].dw);
        free(p->own[i].dbias);
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
    return maps_floats(p->out);
}

/* Where w[k][c][r][q] lies among packed weights. */
static size_t tap(const struct conv_plan *p, int k, int c, int r, int q)
{
    int step = p->in.step, R = p->s.R;
    size_t row = (size_t)((k / BLOCK * p->in.blocks + c / step) * R + r);
    return (row * (size_t)(R * step) + (size_t)(q * step + c % step)) * BLOCK +
           (size_t)(k % BLOCK);
}

/* The same for the way back: k and c change places, and the kernel is turned around. */
static size_t turned_tap(const struct conv_plan *p, int k, int c, int r, int q)
{
    int R = p->s.R;
    size_t row = (size_t)((c / BLOCK * p->full.blocks + k / BLOCK) * R + R - 1 - r);
    return (row * (size_t)(R * BLOCK) + (size_t)((R - 1 - q) * BLOCK + k % BLOCK)) *
               BLOCK +
           (size_t)(c % BLOCK);
}

typedef size_t (*tap_fn)(const struct conv_plan *p, int k, int c, int r, int q);

static void pack(const struct conv_plan *p, const float *w, float *packed, tap_fn where)
{
    for (int k = 0; k < p->s.K; k++)
        for (int c = 0; c < p->s.C; c++)
            for (int r = 0; r < p->s.R; r++)
                for (int q = 0; q < p->s.R; q++)
                    packed[where(p, k, c, r, q)] = *w++;
}

static void unpack(const struct conv_plan *p, const float *packed, float *w)
{
    for (int k = 0; k < p->s.K; k++)
        for (int c = 0; c < p->s.C; c++)
            for (int r = 0; r < p->s.R; r++)
                for (int q = 0; q < p->s.R; q++)
                    *w++ = packed[tap(p, k, c, r, q)];
}

/* What the sums of a convolution become on their way out. */
enum finish { KEEP, RELU, MASK };

struct row { /* a row of outputs of one block of channels, from some blocks of inputs */
    struct maps in;
    int R, first, last; /* rows of the kernel that fall on the image: [first, last) */
    int W;              /* pixels of the row */
    const float *x;     /* the input row under kernel row `first`, first block */
    const float *w;     /* [in.blocks][R][R*step][BLOCK] */
    const float *start; /* what the sums begin with: the same for each pixel, or not */
    int start_step;     /* 0, or BLOCK */
    enum finish finish;
    const float *mask; /* the row of x whose sign decides, for MASK */
    float *y;
};

ALWAYS void conv_sums(int T, int step, const struct row *a, int ow, vec sum[][2])
{
    int taps = a->R * step;
    for (int b = 0; b < a->in.blocks; b++)
        for (int r = a->first; r < a->last; r++) {
            const float *x = a->x + ((b * a->in.H + r - a->first) * a->in.W + ow) * step;
            const float *w = a->w + (b * a->R + r) * taps * BLOCK;
            for (int i = 0; i < taps; i++, w += BLOCK) {
                vec lo = load(w), hi = load(w + VL);
                UNROLL for (int j = 0; j < T; j++)
                {
                    sum[j][0] += x[i + j * step] * lo;
                    sum[j][1] += x[i + j * step] * hi;
                }
            }
        }
}

ALWAYS void conv_tile(int T, int step, const struct row *a, int ow)
{
    vec sum[TILE_MAX][2];
    const float *start = a->start + ow * a->start_step;
    float *y = a->y + ow * BLOCK;
    UNROLL for (int j = 0; j < T; j++, start += a->start_step)
    {
        sum[j][0] = load(start);
        sum[j][1] = load(start + VL);
    }
    conv_sums(T, step, a, ow, sum);
    const float *mask = a->finish == MASK ? a->mask + ow * BLOCK : NULL;
    UNROLL for (int j = 0; j < T; j++, y += BLOCK)
    {
        vec lo = sum[j][0], hi = sum[j][1];
        if (a->finish == RELU) {
            lo = positive(lo);
            hi = positive(hi);
        } else if (a->finish == MASK) {
            lo = where_positive(load(mask + j * BLOCK), lo);
            hi = where_positive(load(mask + j * BLOCK + VL), hi);
        }
        store(y, lo);
        store(y + VL, hi);
    }
}

static void conv_row(const struct row *a)
{
    for (int ow = 0, T; ow < a->W; ow += T) {
        T = next_tile(a->W - ow, TILE);
        if (a->in.step == 1)
            WITH_TILE(T, conv_tile, 1, a, ow);
        else
            WITH_TILE(T, conv_tile, BLOCK, a, ow);
    }
}

/* Two rows to one: the first of equal maxima, in row order, as PyTorch takes it; like
 * there, not-a-number counts as more than any number. */
static void pool_rows(const float *rows, int W, float *y, uint8_t *arg)
{
    for (int j = 0; j < W / 2; j++, rows += BLOCK)
        for (int half = 0; half < 2; half++, rows += VL, y += VL, arg += VL) {
            const float *under = rows + W * BLOCK;
            vec a = load(rows), b = load(rows + BLOCK);
            vec d = load(under), e = load(under + BLOCK);
            bits right = (b > a) | (b != b), low_right = (e > d) | (e != e);
            vec top = pick(right, b, a), low = pick(low_right, e, d);
            bits below = (low > top) | (low != low);
            bits which = (below & (2 - low_right)) | (~below & -right); /* true is -1 */
            store(y, pick(below, low, top));
            *(loose_bytes *)arg = __builtin_convertvector(which, bytes);
        }
}

static void conv_image(const struct conv_plan *p, struct own *own, const float *x,
                       float *y, uint8_t *arg)
{
    size_t in_row = (size_t)(p->in.W * p->in.step), out_row = (size_t)p->out.W * BLOCK;
    for (int kb = 0; kb < p->out.blocks; kb++)
        for (int oh = 0; oh < (p->s.pool ? p->out.H * 2 : p->out.H); oh++) {
            float *pair = own->rows + (oh % 2) * p->full.W * BLOCK;
            struct row row = {.in = p->in,
                              .R = p->s.R,
                              .last = p->s.R,
                              .W = p->full.W,
                              .x = x + (size_t)oh * in_row,
                              .w = p->w + (size_t)kb * (p->taps / (size_t)p->out.blocks),
                              .start = p->bias + kb * BLOCK,
                              .finish = RELU,
                              .y = p->s.pool ? pair : y};
            conv_row(&row);
            if (!p->s.pool) {
                y += out_row;
            } else if (oh % 2) {
                pool_rows(own->rows, p->full.W, y, arg);
                y += out_row;
                arg += out_row;
            }
        }
}

struct call {
    struct conv_plan *p;
    int n;
    const float *x, *y, *dy;
    float *out, *dx, scale;
};

static void forward_part(int part, int parts, void *arg)
{
    const struct call *a = arg;
    struct conv_plan *p = a->p;
    struct own *own = &p->own[part];
    size_t in = maps_floats(p->in), out = NAMED(conv_floats)(p), pixels;
    int from, to, planes = p->s.K;
    pool_share(a->n, 1, part, parts, &from, &to);
    pixels = (size_t)p->out.H * (size_t)p->out.W;
    for (int b = from; b < to; b++) {
        float *y = a->out + (size_t)b * out, *ours = p->s.last ? own->pooled : y;
        conv_image(p, own, a->x + (size_t)b * in, ours,
                   p->s.pool ? p->arg + (size_t)b * maps_floats(p->out) : NULL);
        for (int k = 0; p->s.last && k < planes; k += BLOCK)
            transpose(ours + (size_t)k * pixels, BLOCK, (int)pixels,
                      at_most(BLOCK, planes - k), y + (size_t)k * pixels, pixels);
    }
}

void NAMED(conv)(struct conv_plan *p, int n, const float *x, const float *w,
                 const float *bias, float *y)
{
    pack(p, w, p->w, tap);
    memcpy(p->bias, bias, (size_t)p->s.K * sizeof(float));
    struct call call = {.p = p, .n = n, .x = x, .out = y};
    pool_run(forward_part, &call);
}

/* One image's gradient before ReLU, in our layout. Between layers it comes masked. */
static const float *unmask(const struct conv_plan *p, struct own *own, const float *y,
                           const float *dy, float scale)
{
    size_t pixels = (size_t)p->out.H * (size_t)p->out.W, all = maps_floats(p->out);
    float *g = own->pooled;
    if (!p->s.last && scale == 1)
        return dy;
    if (!p->s.last) {
        for (size_t i = 0; i < all; i++)
            g[i] = dy[i] * scale;
        return g;
    }
    for (size_t i = 0; i < pixels * (size_t)p->s.K; i++)
        own->planes[i] = y[i] > 0 ? dy[i] * scale : 0;
    for (int k = 0; k < p->s.K; k += BLOCK)
        transpose(own->planes + (size_t)k * pixels, pixels, at_most(BLOCK, p->s.K - k),
                  (int)pixels, g + (size_t)k * pixels, BLOCK);
    return g;
}

static void add_bias(const struct conv_plan *p, const float *g, float *dbias)
{
    size_t pixels = (size_t)p->out.H * (size_t)p->out.W;
    for (int kb = 0; kb < p->out.blocks; kb++, dbias += BLOCK) {
        vec lo = load(dbias), hi = load(dbias + VL);
        for (size_t i = 0; i < pixels; i++, g += BLOCK) {
            lo += load(g);
            hi += load(g + VL);
        }
        store(dbias, lo);
        store(dbias + VL, hi);
    }
}

/* Into the padded image, each to the place its maximum came from. */
static void unpool(const struct conv_plan *p, const float *g, const uint8_t *arg,
                   float *dy)
{
    int wide = p->padded.W * BLOCK;
    for (int row = 0; row < p->out.blocks * p->out.H; row++) {
        int kb = row / p->out.H, i = row % p->out.H;
        float *to = dy + (kb * p->padded.H + 2 * i) * wide + (p->s.R - 1) * BLOCK;
        for (int j = 0; j < p->out.W; j++, to += 2 * BLOCK, g += BLOCK, arg += BLOCK)
            for (int c = 0; c < BLOCK; c++) {
                to[c] = arg[c] == 0 ? g[c] : 0;
                to[BLOCK + c] = arg[c] == 1 ? g[c] : 0;
                to[wide + c] = arg[c] == 2 ? g[c] : 0;
                to[wide + BLOCK + c] = arg[c] == 3 ? g[c] : 0;
            }
    }
}

static void pad(const struct conv_plan *p, const float *g, float *dy)
{
    size_t width = (size_t)p->full.W * BLOCK;
    dy += (p->s.R - 1) * BLOCK;
    for (int row = 0; row < p->full.blocks * p->full.H; row++) {
        memcpy(dy, g, width * sizeof(float));
        g += width;
        dy += (size_t)p->padded.W * BLOCK;
    }
}

struct taps { /* some rows of dy, and what they add to one block's dw in one kernel row */
    int H, W; /* rows and pixels of dy */
    size_t x_row, dy_row; /* floats from a row to the next */
    const float *x, *dy;
    float *dw; /* [R*step][BLOCK] */
};

ALWAYS void taps_tile(int T, int step, const struct taps *a, int i)
{
    vec sum[TILE_MAX][2];
    float *dw = a->dw + i * BLOCK;
    UNROLL for (int j = 0; j < T; j++)
    {
        sum[j][0] = load(dw + j * BLOCK);
        sum[j][1] = load(dw + j * BLOCK + VL);
    }
    for (int h = 0; h < a->H; h++) {
        const float *x = a->x + (size_t)h * a->x_row + i;
        const float *dy = a->dy + (size_t)h * a->dy_row;
        for (int ow = 0; ow < a->W; ow++, x += step, dy += BLOCK) {
            vec lo = load(dy), hi = load(dy + VL);
            UNROLL for (int j = 0; j < T; j++)
            {
                sum[j][0] += x[j] * lo;
                sum[j][1] += x[j] * hi;
            }
        }
    }
    UNROLL for (int j = 0; j < T; j++)
    {
        store(dw + j * BLOCK, sum[j][0]);
        store(dw + j * BLOCK + VL, sum[j][1]);
    }
}

static void taps_row(const struct taps *a, int step, int taps)
{
    for (int i = 0, T; i < taps; i += T) {
        T = next_tile(taps - i, TILE);
        if (step == 1)
            WITH_TILE(T, taps_tile, 1, a, i);
        else
            WITH_TILE(T, taps_tile, BLOCK, a, i);
    }
}

/* `dy` is the first pixel of block 0; rows are dy_row floats apart. */
static void add_taps(const struct conv_plan *p, const float *x, const float *dy,
                     size_t dy_row, float *dw)
{
    int taps = p->s.R * p->in.step, OH = p->full.H;
    size_t x_row = (size_t)(p->in.W * p->in.step);
    for (int kb = 0; kb < p->full.blocks; kb++)
        for (int oh = 0; oh < OH; oh += ROWS_AT_ONCE)
            for (int i = 0; i < p->in.blocks * p->s.R; i++) {
                int cb = i / p->s.R, r = i % p->s.R;
                struct taps a = {
                    .H = at_most(ROWS_AT_ONCE, OH - oh),
                    .W = p->full.W,
                    .x_row = x_row,
                    .dy_row = dy_row,
                    .x = x + (size_t)(cb * p->in.H + oh + r) * x_row,
                    .dy = dy + (size_t)(kb * OH + oh) * dy_row,
                    .dw = dw + (size_t)((kb * p->in.blocks * p->s.R + i) * taps) * BLOCK};
                taps_row(&a, p->in.step, taps);
            }
}

/* dx of one image from its padded gradient: block by block of dy, so that the weights of
 * one block stay in the first cache while all rows go by. */
static void back_image(const struct conv_plan *p, const float *x, const float *dy,
                       float *dx)
{
    static const float zero[BLOCK];
    int R = p->s.R, P = R - 1, OH = p->full.H, blocks = p->padded.blocks;
    size_t from = (size_t)p->padded.W * BLOCK, to = (size_t)p->in.W * BLOCK;
    struct row row = {.in = p->padded, .R = R, .W = p->in.W, .w = p->turned};
    row.in.blocks = 1;
    for (int cb = 0; cb < p->in.blocks; cb++, x += p->in.H * to, dx += p->in.H * to)
        for (int kb = 0; kb < blocks; kb++, row.w += R * R * BLOCK * BLOCK)
            for (int h = 0; h < p->in.H; h++) {
                row.first = h < P ? P - h : 0;
                row.last = at_most(R, P + OH - h);
                row.x = dy + (size_t)(kb * OH + h - P + row.first) * from;
                row.y = dx + (size_t)h * to;
                row.start = kb ? row.y : zero;
                row.start_step = kb ? BLOCK : 0;
                row.mask = x + (size_t)h * to;
                row.finish = kb + 1 < blocks ? KEEP : MASK;
                conv_row(&row);
            }
}

static void back_part(int part, int parts, void *arg)
{
    const struct call *a = arg;
    struct conv_plan *p = a->p;
    struct own *own = &p->own[part];
    size_t in = maps_floats(p->in), out = NAMED(conv_floats)(p),
           ours = maps_floats(p->out);
    size_t padded_row = (size_t)p->padded.W * BLOCK,
           pad_left = (size_t)(p->s.R - 1) * BLOCK;
    int from, to;
    memset(own->dw, 0, p->taps * sizeof(float));
    memset(own->dbias, 0, (size_t)p->out.blocks * BLOCK * sizeof(float));
    pool_share(a->n, 1, part, parts, &from, &to);
    for (int b = from; b < to; b++) {
        const float *x = a->x + (size_t)b * in;
        const float *g =
            unmask(p, own, a->y + (size_t)b * out, a->dy + (size_t)b * out, a->scale);
        add_bias(p, g, own->dbias);
        if (p->s.pool)
            unpool(p, g, p->arg + (size_t)b * ours, own->dy);
        else if (a->dx)
            pad(p, g, own->dy);
        if (p->s.pool || a->dx)
            add_taps(p, x, own->dy + pad_left, padded_row, own->dw);
        else
            add_taps(p, x, g, (size_t)p->full.W * BLOCK, own->dw);
        if (a->dx)
            back_image(p, x, own->dy, a->dx + (size_t)b * in);
    }
}

void NAMED(conv_back)(struct conv_plan *p, int n, const float *x, const float *w,
                      const float *y, const float *dy, float scale, float *dw,
                      float *dbias, float *dx)
{
    if (dx)
        pack(p, w, p->turned, turned_tap);
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
    memcpy(dbias, sum->dbias, (size_t)p->s.K * sizeof(float));
}
