/* worker/kernels/vector_direct.c - direct convolution: for each tap of the kernel a
 * product of matrices
 *
 *     forward   y += w[tap] v[tap]       v[tap]: the inputs under this tap
 *     dw        dw[tap] += v[tap]' dy
 *     dx        w[tap]' dy is added to the pixels under this tap
 *
 * Rows of outputs are processed some at a time, so that v and y stay in the second-level
 * cache while the weights of a tap are read. A first layer has few channels, so there all
 * taps are one product.
 */
#include "worker/kernels/vector_conv_impl.h"

#include <string.h>

/* ---- strips ---- */

struct range { /* [from, to) */
    int from, to;
};

struct strip {   /* some rows of outputs: of each the pixels of all images of a group */
    int n, H, W; /* images; rows of each, and pixels of a row */
    struct range rows;
    int columns; /* pixels, to whole words */
};

static struct strip strip_of(const struct conv_plan *p, int n)
{
    return (struct strip){n, p->full.H, p->full.W, {0}, 0};
}

/* Goes on to the next one. */
static bool next_strip(const struct conv_plan *p, struct strip *s)
{
    int left = s->H - s->rows.to, rows = left > 0 ? next_tile(left, p->rows) : 0;
    s->rows.from = s->rows.to;
    s->rows.to += rows;
    s->columns = round_up((s->rows.to - s->rows.from) * s->n * s->W, PER_WORD);
    return left > 0;
}

/* What is under a strip: pixels of images `of`, `stride` apart, the first of them at
 * (down, right); and the rows and pixels of outputs for which there are any. */
struct under {
    struct maps of;
    int stride, down, right;
    struct range rows, across;
};

/* The numbers of `within` for which the pixel at + i * stride is one of `size`. */
static struct range inside(struct range within, int at, int stride, int size)
{
    int from = at_least(0, stride - 1 - at), to = at_least(0, size - at + stride - 1);
    if (stride > 1) { /* there are many small images */
        from /= stride;
        to /= stride;
    }
    from = at_most(within.to, at_least(within.from, from));
    return (struct range){from, at_least(from, at_most(within.to, to))};
}

static struct under under_of(const struct strip *s, struct maps of, int stride, int down,
                             int right)
{
    struct range all = {0, s->W};
    return (struct under){of,
                          stride,
                          down,
                          right,
                          inside(s->rows, down, stride, of.H),
                          inside(all, right, stride, of.W)};
}

static struct under tap_of(const struct conv_plan *p, const struct strip *s, int tap)
{
    int R = p->s.R, pad = p->s.pad;
    return under_of(s, p->in, p->s.stride, tap / R - pad, tap % R - pad);
}

/* The first pixel under row h of an image's outputs, of its block b. */
static int first_under(const struct under *u, int image, int b, int h)
{
    h = (image * u->of.blocks + b) * u->of.H + h * u->stride + u->down;
    return h * u->of.W + u->across.from * u->stride + u->right;
}

/* Copies a pixel, or writes zeros. */
ALWAYS void copy_pixel(const float *from, float *to)
{
    for (int i = 0; i < WORDS; i += VL)
        store(to + i, from ? load(from + i) : (vec){0});
}

/* v[of.blocks][columns][WORDS] of some rows; zeros where no pixel is. */
static void gather(const struct strip *s, const struct under *u, struct range rows,
                   const float *x, float *v)
{
    for (int i = rows.from * s->n; i < rows.to * s->n; i++, v += s->W * WORDS) {
        int h = i / s->n, image = i % s->n;
        bool in = h >= u->rows.from && h < u->rows.to;
        int from = in ? u->across.from : s->W, to = in ? u->across.to : s->W;
        for (int b = 0; b < u->of.blocks; b++) {
            const float *row = in ? x + first_under(u, image, b, h) * WORDS : x;
            float *out = v + b * s->columns * WORDS;
            for (int w = 0; w < s->W; w++, out += WORDS) {
                bool inner = w >= from && w < to;
                copy_pixel(inner ? row : NULL, out);
                row += inner ? u->stride * WORDS : 0;
            }
        }
    }
}

/* Adds M[of.blocks][columns][BLOCK] to the pixels under these outputs, in floats. */
static void scatter(const struct strip *s, const struct under *u, const float *M,
                    float *x)
{
    for (int i = u->rows.from * s->n; i < u->rows.to * s->n; i++, M += s->W * BLOCK)
        for (int b = 0; b < u->of.blocks; b++) {
            const float *in = M + (b * s->columns + u->across.from) * BLOCK;
            float *out = x + (size_t)first_under(u, i % s->n, b, i / s->n) * BLOCK;
            for (int w = u->across.from; w < u->across.to; w++, in += BLOCK) {
                put(out, plus(take(out), take(in)));
                out += u->stride * BLOCK;
            }
        }
}

/* Makes words of two columns' numbers; an odd last one is paired with zeros. */
static void pair_columns(const struct strip *s, int blocks, float *m)
{
#if BF16
    int pixels = (s->rows.to - s->rows.from) * s->n * s->W;
    for (int b = 0; b < blocks; b++)
        for (int i = 0; i < s->columns; i += 2, m += BLOCK) {
            if (i + 1 == pixels)
                memset(m + WORDS, 0, WORDS * sizeof *m);
            pair_pixels(m);
        }
#endif
}

/* ---- the plan ---- */

/* A strip has 128 columns, or a few more. */
static void direct_room(struct conv_plan *p, struct own *own)
{
    int in = p->s.first ? p->s.C * p->s.R * p->s.R : p->in.blocks * BLOCK;
    int wider = at_least(in, p->full.blocks * BLOCK), row = p->group * p->full.W;
    p->rows = at_most(p->full.H, 128 / row + 1);
    size_t columns = (size_t)round_up(p->rows * row, PER_WORD);
    own->v = scratch_in(p->memory, columns * (size_t)wider);
    own->M = scratch_in(p->memory, columns * (size_t)wider);
}

/* ---- passes over a group ---- */

/* n floats, `step` apart; the last vector may overlap the one before. */
ALWAYS void copy_floats(int n, const float *from, int step, float *to)
{
    for (int i = 0; step == 1 && n >= VL && i < n; i += VL) {
        int at = at_most(i, n - VL);
        store(to + at, load(from + at));
    }
    for (int i = 0; (step > 1 || n < VL) && i < n; i++)
        to[i] = from[i * step];
}

/* In a first layer v of all taps: [C][taps][columns]. */
static void take_planes(const struct conv_plan *p, const struct strip *s, const float *x,
                        float *v)
{
    int taps = p->s.R * p->s.R;
    for (int i = 0; i < taps * p->s.C; i++, v += s->columns) {
        struct under u = tap_of(p, s, i % taps);
        int from = u.across.from, n = u.across.to - from;
        if (n < s->W || u.rows.from > s->rows.from || u.rows.to < s->rows.to)
            memset(v, 0, (size_t)s->columns * sizeof *v);
        for (int h = u.rows.from; h < u.rows.to; h++)
            copy_floats(n, x + first_under(&u, 0, i / taps, h), p->s.stride,
                        v + (h - s->rows.from) * s->W + from);
    }
}

/* Of one block of channels: bias and ReLU. */
static void put_outputs(const struct conv_plan *p, const struct strip *s, int kb,
                        const float *M, float *y)
{
    struct two bias = take(p->bias + kb * BLOCK);
    struct pixels out = {.finish = p->s.bare ? 0 : FINISH_RELU, .y = y};
    for (int i = s->rows.from * s->n; i < s->rows.to * s->n; i++) {
        int image = i % s->n, h = i / s->n;
        size_t row = (size_t)((image * p->full.blocks + kb) * p->full.H + h);
        size_t at = row * (size_t)s->W;
        for (int w = 0; w < s->W; w++, at++, M += BLOCK)
            conv_pixel(&out, at * WORDS, plus(take(M), bias));
    }
}

static void direct_forward(const struct conv_plan *p, struct own *own, int n,
                           const float *x, float *y)
{
    struct strip s = strip_of(p, n);
    bool first = p->s.first;
    int taps = first ? 1 : p->s.R * p->s.R;
    size_t output = p->taps / (size_t)p->full.blocks / (first ? 1 : PER_WORD);
    while (next_strip(p, &s)) {
        struct product m = {.floats = first,
                            .more = !first,
                            .blocks = first ? 1 : p->in.blocks,
                            .count = first ? (int)output / BLOCK : WORDS,
                            .outputs = p->full.blocks,
                            .v_block = (size_t)s.columns * WORDS,
                            .v_row = first ? s.columns : 1,
                            .v_column = first ? 1 : WORDS,
                            .u_block = (size_t)taps * WORDS * BLOCK,
                            .u_output = output,
                            .M_output = (size_t)s.columns * BLOCK};
        if (first)
            take_planes(p, &s, x, own->v);
        else /* of some rows a tap has no inputs */
            memset(own->M, 0, (size_t)m.outputs * m.M_output * sizeof(float));
        for (int i = 0; i < taps; i++) {
            struct under u = tap_of(p, &s, i);
            struct range rows = first ? s.rows : u.rows;
            if (!first)
                gather(&s, &u, rows, x, own->v);
            m.columns = (rows.to - rows.from) * s.n * s.W;
            conv_multiply(&m, own->v, (const float *)p->w + i * WORDS * BLOCK,
                          own->M + (rows.from - s.rows.from) * s.n * s.W * BLOCK);
        }
        for (int kb = 0; kb < p->full.blocks; kb++)
            put_outputs(p, &s, kb, own->M + (size_t)kb * m.M_output, y);
    }
}

/* One image in a first layer. */
static void first_taps(const struct conv_plan *p, struct own *own, const float *x,
                       const float *dy)
{
    struct strip s = strip_of(p, 1);
    int depth = p->s.C * p->s.R * p->s.R;
    dy = in_floats(dy, maps_words(p->full) / WORDS, own->floats);
    while (next_strip(p, &s)) {
        struct product m = {.floats = true,
                            .more = own->begun,
                            .blocks = 1,
                            .count = (s.rows.to - s.rows.from) * s.W,
                            .columns = depth,
                            .outputs = p->full.blocks,
                            .u_output = (size_t)(p->full.H * s.W * BLOCK),
                            .M_output = (size_t)(depth * BLOCK),
                            .v_row = 1,
                            .v_column = s.columns};
        take_planes(p, &s, x, own->v);
        conv_multiply(&m, own->v, dy + s.rows.from * s.W * BLOCK, own->dw);
        own->begun = true;
    }
}

static void direct_taps(const struct conv_plan *p, struct own *own, int n, const float *x,
                        const float *dy)
{
    struct strip s = strip_of(p, n);
    int taps = p->s.R * p->s.R, blocks = p->in.blocks;
    size_t output = p->taps / (size_t)p->full.blocks;
    if (p->s.first) {
        first_taps(p, own, x, dy);
        return;
    }
    while (next_strip(p, &s)) {
        struct under u = under_of(&s, p->full, 1, 0, 0);
        size_t block = (size_t)s.columns * WORDS;
        struct product m = {.more = own->begun,
                            .blocks = 1,
                            .count = s.columns / PER_WORD,
                            .columns = BLOCK,
                            .outputs = 1,
                            .v_row = BLOCK,
                            .v_column = 1};
        gather(&s, &u, s.rows, dy, own->M);
        pair_columns(&s, p->full.blocks, own->M);
        for (int i = 0; i < taps; i++) {
            u = tap_of(p, &s, i);
            gather(&s, &u, s.rows, x, own->v);
            pair_columns(&s, blocks, own->v);
            for (int j = 0; j < p->full.blocks * blocks; j++) {
                size_t kb = (size_t)(j / blocks), cb = (size_t)(j % blocks);
                conv_multiply(&m, own->v + cb * block, own->M + kb * block,
                              own->dw + kb * output +
                                  (cb * (size_t)taps + (size_t)i) * BLOCK * BLOCK);
            }
        }
        own->begun = true;
    }
}

static void direct_back(const struct conv_plan *p, struct own *own, int n, const float *x,
                        const float *dy, float *dx)
{
    struct strip s = strip_of(p, n);
    struct pixels out = {.finish = back_finish(p), .mask = x, .y = dx};
    size_t pixels = (size_t)n * maps_words(p->in) / WORDS;
    int taps = p->s.R * p->s.R;
    memset(own->floats, 0, pixels * BLOCK * sizeof(float));
    while (next_strip(p, &s)) {
        struct under u = under_of(&s, p->full, 1, 0, 0);
        struct product m = {.blocks = p->full.blocks,
                            .count = WORDS,
                            .outputs = p->in.blocks,
                            .v_block = (size_t)s.columns * WORDS,
                            .v_row = 1,
                            .v_column = WORDS,
                            .u_block = (size_t)taps * WORDS * BLOCK,
                            .u_output = (size_t)(taps * p->full.blocks) * WORDS * BLOCK,
                            .M_output = (size_t)s.columns * BLOCK};
        gather(&s, &u, s.rows, dy, own->v);
        for (int i = 0; i < taps; i++) {
            u = tap_of(p, &s, i);
            m.columns = (u.rows.to - u.rows.from) * s.n * s.W;
            conv_multiply(&m, own->v + (u.rows.from - s.rows.from) * s.n * s.W * WORDS,
                          (const float *)p->turned + i * WORDS * BLOCK, own->M);
            scatter(&s, &u, own->M, own->floats);
        }
    }
    for (size_t i = 0; i < pixels; i++)
        conv_pixel(&out, i * WORDS, take(own->floats + i * BLOCK));
}

const struct conv_method conv_direct = {direct_room, direct_forward, direct_taps,
                                        direct_back};
