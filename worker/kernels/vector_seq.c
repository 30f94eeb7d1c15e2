/* worker/kernels/vector_seq.c - layers of a language model: rows of floats, one per
 * token
 *
 * Threads share out rows, or pairs of sample and head. A sum over rows is made by one
 * thread for each column, in the order of rows.
 */
#include "worker/kernels/vector.h"

#include "worker/kernels/pool.h"
#include "worker/kernels/rng.h"

#include <math.h>
#include <string.h>

/* ---- exp of all lanes ---- */

/* 2^n * 2^r with integer n and |r| <= 1/2: a polynomial of degree 6, accurate to 2
 * units in the last place. NaN stays NaN. */
ALWAYS vec vexp(vec x)
{
    const vec zero = {0}, lowest = zero - 87.3f, highest = zero + 88.7f;
    x = pick(x < lowest, lowest, pick(x > highest, highest, x));
    vec t = x * 1.44269504f + 12582912.0f; /* rounds to an integer */
    bits n = (bits)t - 0x4b400000;
    t -= 12582912.0f;
    vec r = x - t * 0.693359375f + t * 2.12194440e-4f;
    vec p = zero + 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    /* in two steps: 2^128 exceeds float */
    bits half = n >> 1;
    p *= (vec)((half + 127) << 23);
    return p * (vec)((n - half + 127) << 23);
}

ALWAYS float lanes_sum(vec v)
{
    float all = 0;
    for (int i = 0; i < VL; i++)
        all += v[i];
    return all;
}

/* A vector of row[i..n), `fill` beyond its end. */
ALWAYS vec load_tail(const float *row, int i, int n, float fill)
{
    float v[VL];
    for (int k = 0; k < VL; k++)
        v[k] = i + k < n ? row[i + k] : fill;
    return load(v);
}

ALWAYS vec load_some(const float *row, int i, int n, float fill)
{
    return i + VL <= n ? load(row + i) : load_tail(row, i, n, fill);
}

ALWAYS void store_some(float *row, int i, int n, vec v)
{
    if (i + VL <= n)
        store(row + i, v);
    else
        memcpy(row + i, &v, (size_t)(n - i) * sizeof(float));
}

/* ---- rows for threads ---- */

struct rows {
    int n;
    struct row_norm norm;
    struct activation f;
    struct attention_shape s;
    const float *x, *dy, *turns;
    float *y, *dw, *dbias, *kept;
    bool add, back;
};

/* ---- layer norm, RMS norm ---- */

static void norm_row(int row, int part, void *arg)
{
    const struct rows *a = arg;
    int C = a->norm.C;
    const float *x = a->x + (size_t)row * (size_t)C, *bias = a->norm.bias;
    float *y = a->y + (size_t)row * (size_t)C, mean = 0;
    vec sum = {0}, squares = {0};
    if (!a->norm.rms) {
        for (int i = 0; i < C; i += VL)
            sum += load_some(x, i, C, 0);
        mean = lanes_sum(sum) / (float)C;
    }
    for (int i = 0; i < C; i += VL) {
        vec d = load_some(x, i, C, mean) - mean;
        squares += d * d;
    }
    float scale = 1 / sqrtf(lanes_sum(squares) / (float)C + a->norm.eps);
    for (int i = 0; i < C; i += VL) {
        vec v = (load_some(x, i, C, 0) - mean) * scale * load_some(a->norm.w, i, C, 0);
        store_some(y, i, C, bias ? v + load_some(bias, i, C, 0) : v);
    }
    a->kept[2 * row] = mean;
    a->kept[2 * row + 1] = scale;
}

void NAMED(row_norm)(struct row_norm f, int n, const float *x, float *y, float *kept)
{
    pool_each(n, norm_row, &(struct rows){.norm = f, .x = x, .y = y, .kept = kept});
}

static void norm_back_row(int row, int part, void *arg)
{
    const struct rows *a = arg;
    int C = a->norm.C;
    size_t at = (size_t)row * (size_t)C;
    const float *x = a->x + at, *dy = a->dy + at, *w = a->norm.w;
    float mean = a->kept[2 * row], scale = a->kept[2 * row + 1], *dx = a->y + at;
    vec sum = {0}, along = {0}; /* of g = dy w, and of g times the normalised x */
    for (int i = 0; i < C; i += VL) {
        vec g = load_some(dy, i, C, 0) * load_some(w, i, C, 0);
        sum += g;
        along += g * (load_some(x, i, C, mean) - mean);
    }
    float mean_g = a->norm.rms ? 0 : lanes_sum(sum) / (float)C;
    float slope = lanes_sum(along) / (float)C * scale * scale;
    for (int i = 0; i < C; i += VL) {
        vec g = load_some(dy, i, C, 0) * load_some(w, i, C, 0);
        vec d = (g - mean_g - (load_some(x, i, C, 0) - mean) * slope) * scale;
        store_some(dx, i, C, a->add ? load_some(dx, i, C, 0) + d : d);
    }
}

/* Of a vector of columns. */
static void norm_back_weights(int vector, int part, void *arg)
{
    const struct rows *a = arg;
    int C = a->norm.C, i = vector * VL;
    vec dw = {0}, dbias = {0};
    for (int row = 0; row < a->n; row++) {
        size_t at = (size_t)row * (size_t)C;
        vec dy = load_some(a->dy + at, i, C, 0);
        float mean = a->kept[2 * row], scale = a->kept[2 * row + 1];
        dw += dy * ((load_some(a->x + at, i, C, 0) - mean) * scale);
        dbias += dy;
    }
    store_some(a->dw, i, C, dw);
    if (a->dbias)
        store_some(a->dbias, i, C, dbias);
}

void NAMED(row_norm_back)(struct row_norm f, int n, const float *x, const float *kept,
                          const float *dy, float *dw, float *dbias, float *dx, bool add)
{
    struct rows a = {.n = n,
                     .norm = f,
                     .x = x,
                     .dy = dy,
                     .y = dx,
                     .dw = dw,
                     .dbias = dbias,
                     .kept = (float *)(uintptr_t)kept,
                     .add = add};
    pool_each(round_up(f.C, VL) / VL, norm_back_weights, &a);
    pool_each(n, norm_back_row, &a);
}

void NAMED(column_sums)(int n, int C, const float *dy, float *sums)
{
    for (int i = 0; i < C; i += VL) {
        vec sum = {0};
        for (int row = 0; row < n; row++)
            sum += load_some(dy + (size_t)row * (size_t)C, i, C, 0);
        store_some(sums, i, C, sum);
    }
}

/* ---- GELU and SiLU: x times a share, 1 / (1 + exp(-u)), of a polynomial u ---- */

enum { CHUNK = 4096 };

ALWAYS vec share_of(vec x, const struct activation *f)
{
    return 1.0f / (1.0f + vexp(x * (x * x * -f->cubic - f->linear)));
}

/* y, or with `dy` the gradients, of n numbers x and, if gated, z behind them. */
static void activate(const struct activation *f, int n, const float *x, const float *dy,
                     float *y)
{
    for (int i = 0; i < n; i += VL) {
        vec v = load_some(x, i, n, 0), s = share_of(v, f), fx = v * s;
        vec z = f->gated ? load_some(x + n, i, n, 0) : (vec){0} + 1.0f;
        if (!dy) {
            store_some(y, i, n, f->gated ? fx * z : fx);
            continue;
        }
        vec g = load_some(dy, i, n, 0), slope = v * v * (3 * f->cubic) + f->linear;
        store_some(y, i, n, g * z * (s + fx * (1.0f - s) * slope));
        if (f->gated)
            store_some(y + n, i, n, g * fx);
    }
}

/* A row if it is gated, else as many numbers as are worth a call. */
static size_t activated_at_once(const struct activation *f)
{
    return f->gated ? (size_t)f->C : CHUNK;
}

static void activate_some(int i, int part, void *arg)
{
    const struct rows *a = arg;
    const struct activation *f = &a->f;
    size_t each = activated_at_once(f), at = (size_t)i * each, wide = f->gated ? 2 : 1;
    size_t left = (size_t)a->n * (size_t)f->C - at;
    activate(f, (int)(left < each ? left : each), a->x + wide * at,
             a->dy ? a->dy + at : NULL, a->y + (a->dy ? wide : 1) * at);
}

void NAMED(activation)(struct activation f, int n, const float *x, const float *dy,
                       float *to)
{
    size_t each = activated_at_once(&f), all = (size_t)n * (size_t)f.C;
    pool_each((int)((all + each - 1) / each), activate_some,
              &(struct rows){.n = n, .f = f, .x = x, .dy = dy, .y = to});
}

/* ---- rotary positions ---- */

static void rotary_row(int i, int part, void *arg)
{
    const struct rows *a = arg;
    const struct attention_shape *s = &a->s;
    int row = s->from + i;
    int D = s->D, half = D / 2, turned = s->heads + s->kv_heads;
    size_t ld = (size_t)(turned + s->kv_heads) * (size_t)D;
    const float *cosines = a->turns + (size_t)(row % s->T) * (size_t)D;
    const float *x = a->x + (size_t)row * ld;
    float *y = a->y + (size_t)row * ld;
    for (int h = 0; h < turned; h++, x += D, y += D)
        for (int d = 0; d < half; d += VL) {
            vec u = load_some(x, d, half, 0), v = load_some(x + half, d, half, 0);
            vec c = load_some(cosines, d, half, 0);
            vec n = load_some(cosines + half, d, half, 0);
            n = a->back ? -n : n;
            store_some(y, d, half, u * c - v * n);
            store_some(y + half, d, half, v * c + u * n);
        }
    memcpy(y, x, (size_t)s->kv_heads * (size_t)D * sizeof *y);
}

void NAMED(rotary)(struct attention_shape s, int n, const float *turns, const float *x,
                   float *y, bool back)
{
    pool_each(n * (s.T - s.from), rotary_row,
              &(struct rows){.s = s, .x = x, .y = y, .turns = turns, .back = back});
}

/* ---- attention: QUERIES queries at a time, with all their weights in the cache ---- */

enum { QUERIES = 64 };

struct attention_call {
    struct attention_shape s;
    const float *qkv, *y, *dy;
    float *out, *dqkv, *lse, *room;
};

static size_t attention_own(const struct attention_shape *s)
{
    size_t blocks = (size_t)round_up(s->T, BLOCK) * QUERIES;
    return 2 * blocks + NAMED(gemm_room)() / (size_t)pool_threads();
}

size_t NAMED(attention_room)(struct attention_shape s)
{
    return attention_own(&s) * (size_t)pool_threads();
}

static float *room_of(const struct attention_call *a, int part)
{
    return a->room + (size_t)part * attention_own(&a->s);
}

/* c = a b, or with `add` c += a b, in the calling thread. */
static void multiply(int M, int N, int K, struct matrix a, struct matrix b, bool add,
                     float *c, size_t ldc, float *room)
{
    NAMED(gemm_alone)(&(struct gemm){M, N, K, a, b, NULL, c, ldc, add}, room);
}

/* Of a token's queries, keys and values. */
static size_t row_floats(const struct attention_shape *s)
{
    return (size_t)(s->heads + 2 * s->kv_heads) * (size_t)s->D;
}

/* The first of a head's keys, after its sample's first query; values follow at a distance
 * of kv_heads heads. */
static size_t keys_at(const struct attention_shape *s, int head)
{
    return (size_t)(s->heads + head / (s->heads / s->kv_heads)) * (size_t)s->D;
}

/* Logits of queries [q, q + count) and all keys up to the last of them. */
static void attention_logits(const struct attention_shape *s, const float *queries, int q,
                             int count, const float *keys, float *p, float *room)
{
    size_t ld = row_floats(s), ldp = (size_t)round_up(s->T, BLOCK);
    multiply(count, q + count, s->D, matrix(queries, ld), transposed(keys, ld), false, p,
             ldp, room);
}

/* Replaces one query's logits by exp(scale * logit - shift); later keys get weight 0.
 * Returns the sum. */
static float weigh(float *p, int keys, int all, float scale, float shift)
{
    vec sum = {0};
    for (int i = 0; i < keys; i += VL) {
        vec e = vexp(load_some(p, i, keys, -INFINITY) * scale - shift);
        if (i + VL > keys)
            for (int k = keys - i; k < VL; k++)
                e[k] = 0;
        sum += e;
        store_some(p, i, keys, e);
    }
    memset(p + keys, 0, (size_t)(all - keys) * sizeof(float));
    return lanes_sum(sum);
}

static float largest(const float *v, int n)
{
    vec most = load_some(v, 0, n, v[0]);
    for (int i = VL; i < n; i += VL) {
        vec x = load_some(v, i, n, v[0]);
        most = pick(x > most, x, most);
    }
    float best = most[0];
    for (int k = 1; k < VL; k++)
        best = most[k] > best ? most[k] : best;
    return best;
}

/* Drops some of a row's weights: of a head's query. */
static void drop_some(const struct attention_call *a, size_t row, int keys, float *p)
{
    if (a->s.dropout > 0)
        NAMED(drop)(p, keys, a->s.dropout, rng_word(a->s.key, row));
}

static void attention_head(int i, int part, void *arg)
{
    const struct attention_call *a = arg;
    const struct attention_shape *s = &a->s;
    int sample = i / s->heads, head = i % s->heads;
    size_t C = (size_t)s->heads * (size_t)s->D, ldp = (size_t)round_up(s->T, BLOCK);
    size_t first = (size_t)sample * (size_t)s->T, column = (size_t)head * (size_t)s->D;
    size_t ld = row_floats(s), shared = (size_t)s->kv_heads * (size_t)s->D;
    size_t row0 = ((size_t)sample * (size_t)s->heads + (size_t)head) * (size_t)s->T;
    const float *qkv = a->qkv + first * ld, *keys = qkv + keys_at(s, head);
    float *lse = a->lse + row0;
    float *p = room_of(a, part), *rest = p + 2 * ldp * QUERIES;
    float scale = 1 / sqrtf((float)s->D);
    for (int q = s->from; q < s->T; q += QUERIES) {
        int count = at_most(QUERIES, s->T - q);
        attention_logits(s, qkv + (size_t)q * ld + column, q, count, keys, p, rest);
        for (int t = q; t < q + count; t++) {
            float *row = p + (size_t)(t - q) * ldp, most = largest(row, t + 1) * scale;
            float sum = weigh(row, t + 1, q + count, scale, most);
            lse[t] = most + logf(sum);
            for (int k = 0; k <= t; k++)
                row[k] *= 1 / sum;
            drop_some(a, row0 + (size_t)t, t + 1, row);
        }
        multiply(count, s->D, q + count, matrix(p, ldp), matrix(keys + shared, ld), false,
                 a->out + (first + (size_t)q) * C + column, C, rest);
    }
}

/* For queries [q, q + count) of the head that has rows from row0 on: recomputes weights
 * p, then dp = dy v^T and the gradient of the logits. */
static void logits_back(const struct attention_call *a, size_t at, size_t row0, int q,
                        int count, float *p, float *dp)
{
    const struct attention_shape *s = &a->s;
    size_t C = (size_t)s->heads * (size_t)s->D, ldp = (size_t)round_up(s->T, BLOCK);
    float scale = 1 / sqrtf((float)s->D);
    for (int i = 0; i < count; i++, p += ldp, dp += ldp, at += C) {
        size_t row = row0 + (size_t)(q + i);
        vec dot = {0};
        for (int d = 0; d < s->D; d += VL)
            dot += load_some(a->dy + at, d, s->D, 0) * load_some(a->y + at, d, s->D, 0);
        float mean = lanes_sum(dot);
        weigh(p, q + i + 1, q + count, scale, a->lse[row]);
        drop_some(a, row, q + i + 1, dp);
        for (int k = 0; k < q + count; k++)
            dp[k] = p[k] * (dp[k] - mean) * scale;
        drop_some(a, row, q + i + 1, p);
    }
}

/* The gradients of one head of keys and values, and of the queries that share them. */
static void attention_head_back(int i, int part, void *arg)
{
    const struct attention_call *a = arg;
    const struct attention_shape *s = &a->s;
    int sample = i / s->kv_heads, kv = i % s->kv_heads;
    int D = s->D, group = s->heads / s->kv_heads;
    size_t C = (size_t)s->heads * (size_t)D, ldp = (size_t)round_up(s->T, BLOCK);
    size_t first = (size_t)sample * (size_t)s->T, ld = row_floats(s);
    size_t at = keys_at(s, kv * group), shared = (size_t)s->kv_heads * (size_t)D;
    const float *qkv = a->qkv + first * ld, *keys = qkv + at;
    float *dqkv = a->dqkv + first * ld, *dkeys = dqkv + at;
    float *p = room_of(a, part), *dp = p + ldp * QUERIES, *rest = dp + ldp * QUERIES;
    for (int t = 0; t < s->T; t++)
        for (size_t k = 0; k < 2; k++)
            memset(dkeys + (size_t)t * ld + k * shared, 0, (size_t)D * sizeof(float));
    for (int head = kv * group; head < (kv + 1) * group; head++) {
        size_t row0 = ((size_t)sample * (size_t)s->heads + (size_t)head) * (size_t)s->T;
        size_t column = (size_t)head * (size_t)D;
        for (int q = 0; q < s->T; q += QUERIES) {
            int count = at_most(QUERIES, s->T - q), n = q + count;
            const float *queries = qkv + (size_t)q * ld + column;
            size_t rows = (first + (size_t)q) * C + column;
            attention_logits(s, queries, q, count, keys, p, rest);
            struct matrix dy = matrix(a->dy + rows, C);
            multiply(count, n, D, dy, transposed(keys + shared, ld), false, dp, ldp,
                     rest);
            logits_back(a, rows, row0, q, count, p, dp);
            multiply(count, D, n, matrix(dp, ldp), matrix(keys, ld), false,
                     dqkv + (size_t)q * ld + column, ld, rest);
            multiply(n, D, count, transposed(dp, ldp), matrix(queries, ld), true, dkeys,
                     ld, rest);
            multiply(n, D, count, transposed(p, ldp), dy, true, dkeys + shared, ld, rest);
        }
    }
}

void NAMED(attention)(struct attention_shape s, int n, const float *qkv, float *y,
                      float *lse, float *room)
{
    pool_each(
        n * s.heads, attention_head,
        &(struct attention_call){.s = s, .qkv = qkv, .out = y, .lse = lse, .room = room});
}

void NAMED(attention_back)(struct attention_shape s, int n, const float *qkv,
                           const float *y, const float *lse, const float *dy, float *dqkv,
                           float *room)
{
    pool_each(n * s.kv_heads, attention_head_back,
              &(struct attention_call){.s = s,
                                       .qkv = qkv,
                                       .y = y,
                                       .dy = dy,
                                       .dqkv = dqkv,
                                       .lse = (float *)(uintptr_t)lse,
                                       .room = room});
}

/* ---- the loss of rows of logits, and its gradient in their place ---- */

struct loss_call {
    int V;
    float *logits, smooth, scale; /* 0: no gradient */
    const uint32_t *labels;
    double *found;
};

static void row_loss(int i, int part, void *arg)
{
    const struct loss_call *a = arg;
    float *row = a->logits + (size_t)i * (size_t)a->V, most = largest(row, a->V);
    float right = row[a->labels[i]], even = a->smooth / (float)a->V;
    vec below = {0}, peaks = {0}; /* sums of e^(x - most), apart: below may be tiny */
    double sum = 0;               /* of the logits, for `smooth` */
    bool first = right >= most;
    for (uint32_t v = 0; first && v < a->labels[i]; v++)
        first = row[v] < most;
    for (int v = 0; v < a->V; v += VL) {
        vec x = load_some(row, v, a->V, -INFINITY), e = vexp(x - most);
        for (int k = a->V - v; k < VL; k++)
            e[k] = 0;
        vec lower = (vec)((bits)e & (x < most));
        below += lower;
        peaks += e - lower;
        if (even > 0)
            sum += (double)lanes_sum(load_some(row, v, a->V, 0));
        if (a->scale != 0)
            store_some(row, v, a->V, e);
    }
    float others = lanes_sum(below) + (lanes_sum(peaks) - 1);
    a->found[2 * i] = log1p((double)others) + (double)most - (double)right +
                      (even > 0 ? (double)a->smooth * ((double)right - sum / a->V) : 0);
    a->found[2 * i + 1] = first;
    if (a->scale == 0)
        return;
    for (int v = 0; v < a->V; v += VL)
        store_some(row, v, a->V,
                   load_some(row, v, a->V, 0) * (a->scale / (1 + others)) -
                       even * a->scale);
    row[a->labels[i]] -= (1 - a->smooth) * a->scale;
}

void NAMED(class_loss)(int n, int V, float *logits, const uint32_t *labels, float smooth,
                       float scale, double *found)
{
    pool_each(n, row_loss, &(struct loss_call){V, logits, smooth, scale, labels, found});
}
