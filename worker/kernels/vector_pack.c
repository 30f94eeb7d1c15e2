/* worker/kernels/vector_pack.c - packs a convolution's weights in the order in which
 * vector_conv_impl.h reads them, and unpacks their gradients
 *
 * A pair of blocks at a time, [BLOCK k][BLOCK c][R*R] in PyTorch's order, is
 * transposed into rows of BLOCK features, which are then copied to their positions, or
 * transformed (vector_winograd.c).
 * Threads share out the blocks of features, kb.
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

static void pack_first(const struct conv_plan *p, int kb, const float *w, float *packed)
{
    int n = p->s.C * p->s.R * p->s.R;
    for (int k = kb * BLOCK; k < at_most(p->s.K, (kb + 1) * BLOCK); k++)
        for (int i = 0; i < n; i++)
            packed[place_first(p, k, i)] = w[k * n + i];
}

static void unpack_first(const struct conv_plan *p, int kb, const float *packed, float *w)
{
    int n = p->s.C * p->s.R * p->s.R;
    for (int k = kb * BLOCK; k < at_most(p->s.K, (kb + 1) * BLOCK); k++)
        for (int i = 0; i < n; i++)
            w[k * n + i] = packed[place_first(p, k, i)];
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

void conv_pack(int kb, int part, void *weights)
{
    const struct conv_weights *a = weights;
    const struct conv_plan *p = a->p;
    float *rows = p->own[part].pack;
    int RR = p->s.R * p->s.R;
    if (p->s.first)
        pack_first(p, kb, a->w, (float *)p->w);
    for (int cb = 0; cb < p->in.blocks && !p->s.first; cb++) {
        struct pair_of_blocks b = pair_at(p, kb, cb);
        take_block(p, b, a->w, rows);
        if (p->winograd)
            winograd_pack(p->winograd, b.cs, rows, (float *)p->w + b.packed, b.point);
        for (int i = 0; i < RR && !p->winograd; i++)
            copy_panel(rows + i * BLOCK, (size_t)(RR * BLOCK), b.cs, BLOCK,
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

void conv_turn(int kb, int part, void *weights)
{
    const struct conv_weights *a = weights;
    const struct conv_plan *p = a->p;
    float *rows = p->own[part].pack;
    int RR = p->s.R * p->s.R;
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
            transpose(rows + i * BLOCK, (size_t)(RR * BLOCK), b.cs, b.ks, turned, BLOCK);
            copy_panel(turned, BLOCK, b.ks, BLOCK,
                       (float *)(p->turned + at) + i * WORDS * BLOCK);
        }
    }
}

void conv_unpack(int kb, int part, void *weights)
{
    const struct conv_weights *a = weights;
    const struct conv_plan *p = a->p;
    float *rows = p->own[part].pack, *sum = p->own[0].dw;
    int RR = p->s.R * p->s.R;
    size_t features = p->taps / (size_t)p->full.blocks, first = (size_t)kb * features;
    for (int i = 1; i < p->threads; i++)
        for (size_t j = first; j < first + features; j++)
            sum[j] += p->own[i].dw[j];
    if (p->s.first)
        unpack_first(p, kb, sum, a->dw);
    for (int cb = 0; cb < p->in.blocks && !p->s.first; cb++) {
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
}
