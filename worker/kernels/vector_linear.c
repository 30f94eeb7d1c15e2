/* worker/kernels/vector_linear.c - linear layers: three products, without packing weights
 *
 * The batch is small and the weights are large, so forward reads a weight once and uses
 * it for all samples. General matrix multiplication packs the weights first, which costs
 * a considerable part of the arithmetic's time; backward uses it, as it packs each panel
 * of the weights once for all samples.
 *
 *   forward   y^T = w x^T: vectors run along the batch, scalars are the weights in place.
 *             x is transposed in chunks of CHUNK columns that stay in the cache.
 *   dw = g^T x, dx = g w: vector_gemm.c, with vectors along C.
 *
 * The factors of dw (kernels.h) are g and the panels of x.
 *
 * With bf16 a word holds two numbers that are adjacent in the sum: columns in forward,
 * samples in dw, features in dx. Operands are rounded and paired when they are packed,
 * and before they are transposed, which halves that work. Weights are not packed; they
 * are rounded a tile at a time, or once if the batch has several groups of samples.
 *
 * Threads split rows or columns of the result, which does not depend on their number.
 */
#include "worker/kernels/pool.h"
#include "worker/kernels/scratch.h"
#include "worker/kernels/vector_tile.h"

#include <string.h>

enum {
    CHUNK = 49 * LINE,
    ROWS = 6,               /* weights' rows in a forward tile */
    WIDE = VL == 16 ? 4 : 2 /* vectors of samples in one */
};

struct linear_plan {
    struct linear_shape s;
    float *xt;   /* per thread: words [CHUNK][WIDE*VL]; bf16: the other way behind them */
    float *yt;   /* [K][WIDE*VL] */
    float *g;    /* [B][row_of(K)]: gradient before ReLU */
    float *ww;   /* bf16: words of all weights, for more than one group of samples */
    float *room; /* of gemm() */
};

/* The length of rows of n floats that are read one below the other: an odd number of
 * lines, so that they lie in all sets of the cache. */
static size_t row_of(int n)
{
    return (size_t)((n + LINE - 1) / LINE | 1) * LINE;
}

struct linear_plan *NAMED(linear_plan)(struct linear_shape s, struct scratches *memory)
{
    struct linear_plan *p = scratch_bytes(memory, sizeof(*p));
    size_t B = (size_t)s.B, K = (size_t)s.K, threads = (size_t)pool_threads();
    p->s = s;
    p->xt = scratch_in(memory, threads * CHUNK * WIDE * VL * PER_WORD);
    p->yt = scratch_in(memory, K * WIDE * VL);
    p->g = scratch_in(memory, B * row_of(s.K));
    if (PER_WORD > 1 && s.B > WIDE * VL)
        p->ww = scratch_in(memory, K * (size_t)words_of(s.C));
    p->room = scratch_in(memory, NAMED(gemm_room)());
    return p;
}

struct call {
    struct linear_plan *p;
    int n; /* samples of one group */
    const float *x, *w, *bias;
    const float *words; /* of w, or NULL */
    float *y;
};

/* T rows of words of w times `wide` vectors of samples, added to the rows' bias, or, if
 * that is NULL, to yt, and stored in yt. Meanwhile prefetches the next rows of w (NULL:
 * none), which another rank may have written last. */
ALWAYS void forward_tile(int T, int wide, int count, const float *w, size_t ldw,
                         const float *xt, const float *bias, bool relu, float *yt,
                         const float *next, size_t ldn)
{
    vec sum[ROWS][4];
    UNROLL for (int j = 0; j < T; j++) UNROLL for (int v = 0; v < wide; v++) sum[j][v] =
        bias ? (vec){0} + bias[j] : load(yt + (j * wide + v) * VL);
    for (int c = 0, end; c < count; c = end) {
        end = at_most(c + LINE / PER_WORD, count);
        UNROLL for (int j = 0; next && j < T; j++)
            __builtin_prefetch(next + (size_t)j * ldn + c * PER_WORD, 0, 2);
        UNROLL_2 for (int i = c; i < end; i++)
        {
            UNROLL for (int j = 0; j < T; j++) UNROLL for (int v = 0; v < wide; v++)
                sum[j][v] = multiply_add(sum[j][v], w[(size_t)j * ldw + (size_t)i],
                                         load(xt + v * VL));
            xt += wide * VL;
        }
    }
    UNROLL for (int j = 0; j < T; j++) UNROLL for (int v = 0; v < wide; v++)
        store(yt + (j * wide + v) * VL, relu ? positive(sum[j][v]) : sum[j][v]);
}

/* Some rows of a chunk that begins at column c. During the last one, prefetches y, which
 * is written next. */
ALWAYS void forward_rows(int wide, int from, int to, int c, int count,
                         const struct call *a, const float *xt, float *yt)
{
    size_t C = (size_t)a->p->s.C;
    bool last = c + count == a->p->s.C, relu = last && a->p->s.relu;
    for (int k = from, T; k < to; k += T) {
        T = next_tile(to - k, ROWS);
        float room[ROWS * CHUNK / PER_WORD];
        const float *row = a->w + (size_t)k * C + c;
        const float *next = k + T < to && !a->words ? row + (size_t)T * C : NULL;
        size_t ld = C;
        if (a->words) {
            ld = (size_t)words_of(a->p->s.C);
            row = a->words + (size_t)k * ld + c / PER_WORD;
        } else if (PER_WORD > 1) {
            round_rows(T, count, row, ld, room, CHUNK / PER_WORD);
            ld = CHUNK / PER_WORD;
            row = room;
        }
        float *out = yt + (size_t)k * (size_t)(wide * VL);
        const float *bias = c ? NULL : a->bias + k;
        for (int b = 0; last && b < a->n; b++)
            __builtin_prefetch(a->y + (size_t)(b * a->p->s.K + k + T), 1);
        int words = words_of(count);
        switch (T) {
            TILE_CASES_TO_6(forward_tile, wide, words, row, ld, xt, bias, relu, out, next,
                            C)
        }
    }
}

static void forward_part(int part, int parts, void *arg)
{
    const struct call *a = arg;
    const struct linear_shape *s = &a->p->s;
    int from, to, wide = a->n > 2 * VL ? WIDE : a->n > VL ? 2 : 1;
    size_t C = (size_t)s->C, lanes = (size_t)(wide * VL);
    float *xt = a->p->xt + (size_t)part * CHUNK * WIDE * VL * PER_WORD;
    float *rows = xt + CHUNK * WIDE * VL;
    float *yt = a->p->yt;
    pool_share(s->K, ROWS, part, parts, &from, &to);
    for (int c = 0, count; c < s->C && from < to; c += count) {
        count = at_most(round_up(next_tile(s->C - c, CHUNK), LINE), s->C - c);
        if (PER_WORD == 1) {
            transpose(a->x + c, C, a->n, count, xt, lanes);
        } else {
            round_rows(a->n, count, a->x + c, C, rows, CHUNK / PER_WORD);
            transpose(rows, CHUNK / PER_WORD, a->n, words_of(count), xt, lanes);
        }
        if (wide == 1)
            forward_rows(1, from, to, c, count, a, xt, yt);
        else if (wide == 2)
            forward_rows(2, from, to, c, count, a, xt, yt);
        else
            forward_rows(4, from, to, c, count, a, xt, yt);
    }
    transpose(yt + (size_t)from * lanes, lanes, to - from, a->n, a->y + from,
              (size_t)s->K);
}

static void round_weights(int k, int part, void *arg)
{
    const struct call *a = arg;
    size_t C = (size_t)a->p->s.C, words = (size_t)words_of(a->p->s.C);
    round_rows(1, a->p->s.C, a->w + (size_t)k * C, C, a->p->ww + (size_t)k * words,
               words);
}

void NAMED(linear)(struct linear_plan *p, int n, const float *x, const float *w,
                   const float *bias, float *y)
{
    bool once = PER_WORD > 1 && n > WIDE * VL;
    if (once)
        pool_each(p->s.K, round_weights, &(struct call){.p = p, .w = w});
    for (int b = 0; b < n; b += WIDE * VL) {
        struct call call = {.p = p,
                            .n = at_most(n - b, WIDE * VL),
                            .w = w,
                            .words = once ? p->ww : NULL,
                            .bias = bias,
                            .x = x + (size_t)b * (size_t)p->s.C,
                            .y = y + (size_t)b * (size_t)p->s.K};
        pool_run(forward_part, &call);
    }
}

/* The gradient before ReLU, and its sum over the samples. */
static void mask(const struct linear_plan *p, int n, const float *y, const float *dy,
                 float *g, float *dbias)
{
    int K = p->s.K;
    memset(dbias, 0, (size_t)K * sizeof(float));
    for (int i = 0; i < n; i++, y += K, dy += K, g += row_of(K))
        for (int k = 0; k < K; k++) {
            g[k] = p->s.relu && !(y[k] > 0) ? 0 : dy[k];
            dbias[k] += g[k];
        }
}

/* ---- the factors of dw: number of samples, words of g, words of x in panels ---- */

static float *factor_g(float *factors)
{
    return factors + LINE;
}

static float *factor_x(const struct linear_plan *p, float *factors)
{
    return factor_g(factors) + (size_t)words_of(p->s.B) * row_of(p->s.K);
}

/* Where the panel of columns [c, c+BLOCK) of x begins in the packed panels. */
static size_t panel_at(const struct linear_shape *s, int c)
{
    return (size_t)c * (size_t)words_of(s->B);
}

size_t NAMED(linear_factors)(const struct linear_plan *p)
{
    size_t samples = (size_t)words_of(p->s.B), C = (size_t)round_up(p->s.C, BLOCK);
    return LINE + samples * (row_of(p->s.K) + C);
}

/* Rows of g, as long as row_of() says, two to a row of words; an odd last one is paired
 * with zeros. Floats are there already. */
static void pair_rows(const float *g, int rows, size_t ld, float *words)
{
    for (int i = 0; PER_WORD > 1 && i < rows; i += 2, g += 2 * ld, words += ld)
        for (size_t j = 0; j < ld; j += VL)
            store(words + j, words_at(g + j, ld, i + 1 < rows));
}

static void pack_panel(int panel, int part, void *arg)
{
    const struct call *a = arg;
    int C = a->p->s.C, c = panel * BLOCK;
    copy_panel(a->x + c, (size_t)C, a->n, C - c, a->y + panel_at(&a->p->s, c));
}

static void keep_factors(struct linear_plan *p, int n, const float *x, const float *g,
                         float *factors)
{
    memcpy(factors, &n, sizeof n);
    pair_rows(g, n, row_of(p->s.K), factor_g(factors));
    pool_each(round_up(p->s.C, BLOCK) / BLOCK, pack_panel,
              &(struct call){.p = p, .n = n, .x = x, .y = factor_x(p, factors)});
}

/* c[M,C] = a[M,K] b[K,C] */
static void multiply(const struct linear_plan *p, int M, int K, struct matrix a,
                     const float *b, float *c)
{
    size_t C = (size_t)p->s.C;
    const struct gemm g = {M, p->s.C, K, a, matrix(b, C), NULL, c, C, false};
    NAMED(gemm)(&g, p->room);
}

void NAMED(linear_back)(struct linear_plan *p, int n, const float *x, const float *w,
                        const float *y, const float *dy, float *dw, float *factors,
                        float *dbias, float *dx)
{
    size_t ldg = row_of(p->s.K);
    float *g = factors && PER_WORD == 1 ? factor_g(factors) : p->g;
    mask(p, n, y, dy, g, dbias);
    if (factors)
        keep_factors(p, n, x, g, factors);
    else
        multiply(p, p->s.K, n, transposed(g, ldg), x, dw);
    if (dx)
        multiply(p, n, p->s.K, matrix(g, ldg), w, dx);
}

/* Prefetches the next tiles' operands, many lines at once, since most were written by
 * another CPU. Rows of `width` floats, `ld` apart. */
static void fetch(const float *from, int rows, int width, size_t ld)
{
    for (int i = 0; i < rows; i++, from += ld)
        for (int k = 0; k < width; k += LINE)
            __builtin_prefetch(from + k, 0, 2);
}

/* Rows [from, to) of panel c of dw: one batch's contribution, added if `more`. */
static void add_rows(const struct linear_plan *p, float *factors, int c, int from, int to,
                     float *dw, bool more)
{
    const struct linear_shape *s = &p->s;
    const float *panel = factor_x(p, factors) + panel_at(s, c);
    size_t C = (size_t)s->C;
    int width = at_most(BLOCK, s->C - c), n, at = 0;
    memcpy(&n, factors, sizeof n);
    n = words_of(n);
    for (int j = from, T; j < to; j += T) {
        T = next_tile(to - j, TILE);
        int end = c + BLOCK < s->C ? (int)((long)n * (j + T - from) / (to - from)) : 0;
        fetch(panel + panel_at(s, BLOCK) + (size_t)at * BLOCK, end - at, BLOCK, BLOCK);
        at = end;
        float *out = dw + (size_t)(j - from) * C + c;
        tile_rows(T, n, factor_g(factors) + j, row_of(s->K), panel, false,
                  more ? out : NULL, C, out, C, width);
    }
}

void NAMED(linear_rows)(const struct linear_plan *p, float *const *factors, int batches,
                        int from, int to, float *dw)
{
    for (int i = 0; i < batches; i++) {
        int n;
        memcpy(&n, factors[i], sizeof n);
        fetch(factor_g(factors[i]) + from, words_of(n), to - from, row_of(p->s.K));
        fetch(factor_x(p, factors[i]), words_of(n), BLOCK, BLOCK);
    }
    for (int c = 0; c < p->s.C; c += BLOCK)
        for (int i = 0; i < batches; i++)
            add_rows(p, factors[i], c, from, to, dw, i > 0);
}
