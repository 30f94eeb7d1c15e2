/* worker/kernels/vector_pack.c - packs a convolution's weights in the order in which
 * vector_conv_impl.h reads them, and unpacks their gradients
 *
 * A pair of blocks at a time, [BLOCK k][BLOCK c][R*R] in PyTorch's order, is
 * transposed into rows of BLOCK features, which are then copied to their positions, or
 * transformed (vector_winograd.c).
 * Threads share out the blocks of features.
 */
#include "worker/kernels/pool.h"
#include "worker/kernels/vector_conv_impl.h"

#include <string.h>

/* Where number i of feature k is in a first layer's packed weights, whose channels count
 * as blocks of one, and are few. */
static int place_first(const struct conv_plan *p, int k, int i)
{
    return (k / BLOCK * p->s.C * p->s.R * p->s.R + i) * BLOCK + k % BLOCK;
}

static void pack_first(const struct conv_plan *p, const float *w, float *packed)
{
    for (int k = 0; k < p->s.K; k++)
        for (int i = 0; i < p->s.C * p->s.R * p->s.R; i++)
            packed[place_first(p, k, i)] = *w++;
}

static void unpack_first(const struct conv_plan *p, const float *packed, float *w)
{
    for (int k = 0; k < p->s.K; k++)
        for (int i = 0; i < p->s.C * p->s.R * p->s.R; i++)
            *w++ = packed[place_first(p, k, i)];
}

/* Rows of BLOCK floats, `ld` apart, to words; an odd last one is paired with zeros. */
static void to_words(const float *from, size_t ld, int rows, float *to)
{
    for (int i = 0; i < rows; i += PER_WORD, from += PER_WORD * ld, to += BLOCK) {
#if BF16
        static const float zero[BLOCK];
        const float *next = i + 1 < rows ? from + ld : zero;
        store(to, pair(load(from), load(next)));
        store(to + VL, pair(load(from + VL), load(next + VL)));
#else
        memcpy(to, from, BLOCK * sizeof(float));
#endif
    }
}

struct pair_of_blocks {
    int ks, cs;       /* features and channels present */
    size_t w, packed; /* where they begin in w and in the packed weights */
    size_t point;     /* with Winograd's method, from a point to the next */
};

static struct pair_of_blocks pair_at(const struct conv_plan *p, int kb, int cb)
{
    size_t RR = (size_t)(p->s.R * p->s.R), point = (size_t)(p->in.blocks * BLOCK * BLOCK);
    size_t features = p->taps / (size_t)p->full.blocks; /* packed */
    return (struct pair_of_blocks){
        .ks = at_most(BLOCK, p->s.K - kb * BLOCK),
        .cs = at_most(BLOCK, p->s.C - cb * BLOCK),
        .w = ((size_t)(kb * BLOCK) * (size_t)p->s.C + (size_t)(cb * BLOCK)) * RR,
        .packed =
            (size_t)kb * features +
            (size_t)cb * (p->winograd ? BLOCK * BLOCK : features / (size_t)p->in.blocks),
        .point = point};
}

/* As [c][R*R][BLOCK k]; zeros for what is missing of a block. */
static void take_block(const struct conv_plan *p, struct pair_of_blocks b, const float *w,
                       float *rows)
{
    int RR = p->s.R * p->s.R;
    if (b.ks < BLOCK)
        memset(rows, 0, (size_t)(b.cs * RR) * BLOCK * sizeof(float));
    transpose(w + b.w, (size_t)(p->s.C * RR), b.ks, b.cs * RR, rows, BLOCK);
}

void conv_pack(int part, int parts, void *weights)
{
    const struct conv_weights *a = weights;
    const struct conv_plan *p = a->p;
    float *rows = p->own[part].pack;
    int RR = p->s.R * p->s.R, from, to;
    pool_share(p->full.blocks, 1, part, parts, &from, &to);
    if (p->s.first) {
        if (part == 0)
            pack_first(p, a->w, (float *)p->w);
        return;
    }
    for (int kb = from; kb < to; kb++)
        for (int cb = 0; cb < p->in.blocks; cb++) {
            struct pair_of_blocks b = pair_at(p, kb, cb);
            take_block(p, b, a->w, rows);
            if (p->winograd)
                winograd_pack(p->winograd, b.cs, rows, (float *)p->w + b.packed, b.point);
            for (int i = 0; i < RR && !p->winograd; i++)
                to_words(rows + i * BLOCK, (size_t)(RR * BLOCK), b.cs,
                         (float *)(p->w + b.packed) + i * WORDS * BLOCK);
        }
}

/* The points of the kernels of a pair of blocks after k and c are exchanged and the
 * kernels rotated; `rows` has space for them. */
static void turn_points(const struct conv_plan *p, int kb, int cb,
                        struct pair_of_blocks b, float *rows)
{
    int RR = p->s.R * p->s.R;
    float *turned = rows + RR * BLOCK * BLOCK; /* [k][R*R][BLOCK c] */
    size_t ld = (size_t)(RR * BLOCK), point = (size_t)(p->full.blocks * BLOCK * BLOCK);
    size_t at =
        (size_t)cb * (p->taps / (size_t)p->in.blocks) + (size_t)(kb * BLOCK * BLOCK);
    if (b.cs < BLOCK)
        memset(turned, 0, ld * BLOCK * sizeof(float));
    for (int i = 0; i < RR; i++)
        transpose(rows + i * BLOCK, ld, b.cs, b.ks, turned + (RR - 1 - i) * BLOCK, ld);
    winograd_pack(p->winograd, b.ks, turned, (float *)p->turned + at, point);
}

void conv_turn(int part, int parts, void *weights)
{
    const struct conv_weights *a = weights;
    const struct conv_plan *p = a->p;
    float *rows = p->own[part].pack;
    int RR = p->s.R * p->s.R, from, to;
    pool_share(p->full.blocks, 1, part, parts, &from, &to);
    for (int kb = from; kb < to; kb++)
        for (int cb = 0; cb < p->in.blocks; cb++) {
            struct pair_of_blocks b = pair_at(p, kb, cb);
            take_block(p, b, a->w, rows);
            if (p->winograd) {
                turn_points(p, kb, cb, b, rows);
                continue;
            }
            float turned[BLOCK * BLOCK] = {0};
            size_t at = (size_t)(cb * p->full.blocks + kb) * (size_t)RR * BLOCK * BLOCK;
            for (int i = 0; i < RR; i++) {
                transpose(rows + i * BLOCK, (size_t)(RR * BLOCK), b.cs, b.ks, turned,
                          BLOCK);
                to_words(turned, BLOCK, b.ks,
                         (float *)(p->turned + at) + i * WORDS * BLOCK);
            }
        }
}

void conv_unpack(int part, int parts, void *weights)
{
    const struct conv_weights *a = weights;
    const struct conv_plan *p = a->p;
    float *rows = p->own[part].pack, *sum = p->own[0].dw;
    int RR = p->s.R * p->s.R, from, to;
    size_t feature_block = p->taps / (size_t)p->full.blocks;
    pool_share(p->full.blocks, 1, part, parts, &from, &to);
    if (p->s.first) {
        from = 0;
        to = part == 0 ? p->full.blocks : 0;
    }
    for (int i = 1; i < p->threads; i++)
        for (size_t j = (size_t)from * feature_block; j < (size_t)to * feature_block; j++)
            sum[j] += p->own[i].dw[j];
    for (int kb = from; kb < to && !p->s.first; kb++)
        for (int cb = 0; cb < p->in.blocks; cb++) {
            struct pair_of_blocks b = pair_at(p, kb, cb);
            if (p->winograd)
                winograd_unpack(p->winograd, b.cs, sum + b.packed, b.point, rows);
            for (int i = 0; i < RR && !p->winograd; i++)
                for (int c = 0; c < b.cs; c++)
                    memcpy(rows + (c * RR + i) * BLOCK,
                           sum + b.packed + (size_t)((i * BLOCK + c) * BLOCK),
                           BLOCK * sizeof(float));
            transpose(rows, BLOCK, b.cs * RR, b.ks, a->dw + b.w, (size_t)(p->s.C * RR));
        }
    if (p->s.first && part == 0)
        unpack_first(p, sum, a->dw);
}
