/* worker/kernels/vector_pack.c - packs a convolution's weights in the order in which
 * vector_conv_impl.h reads them, and unpacks their gradients
 *
 * A pair of blocks at a time, [BLOCK k][BLOCK c][R*R] in PyTorch's order, is
 * transposed into rows of BLOCK features, which are then copied to their positions, or
 * transformed (vector_winograd.c). In a first layer, which has few channels, the rows of
 * all of them are the packed weights.
 * Threads share out the blocks of features, kb.
 */
#include "worker/kernels/pool.h"
#include "worker/kernels/vector_conv_impl.h"

#include <string.h>

/* What a block has of `all` channels or features. */
static int present(int all, int block)
{
    return at_most(BLOCK, all - block * BLOCK);
}

/* Where a pair of blocks begins in PyTorch's order. */
static size_t plain_at(const struct conv_plan *p, int kb, int cb)
{
    size_t channel = (size_t)(kb * BLOCK) * (size_t)p->s.C + (size_t)(cb * BLOCK);
    return channel * (size_t)(p->s.R * p->s.R);
}

/* Where it begins in packed weights, which have `n` inner blocks for each outer one. */
static size_t packed_at(const struct conv_plan *p, int outer, int inner, int n)
{
    size_t pair = p->taps / (size_t)(p->full.blocks * p->in.blocks);
    return (size_t)(outer * n) * pair +
           (size_t)inner * (p->winograd ? BLOCK * BLOCK : pair);
}

/* As [c][R*R][BLOCK k], with cs channels; zeros for missing features. */
static void take_rows(const struct conv_plan *p, int kb, int cb, int cs, const float *w,
                      float *rows)
{
    int RR = p->s.R * p->s.R, ks = present(p->s.K, kb);
    if (ks < BLOCK)
        memset(rows, 0, (size_t)(cs * RR) * BLOCK * sizeof(float));
    transpose(w + plain_at(p, kb, cb), (size_t)(p->s.C * RR), ks, cs * RR, rows, BLOCK);
}

/* Puts such rows of `count` channels, or features, into the packed weights. */
static void put_rows(const struct conv_plan *p, int count, const float *rows,
                     elem *packed, int outer, int inner, int n)
{
    int RR = p->s.R * p->s.R;
    size_t at = packed_at(p, outer, inner, n), point = (size_t)(n * BLOCK * BLOCK);
    if (p->winograd)
        winograd_pack(p->winograd, count, rows, (float *)packed + at, point);
    for (int i = 0; i < RR && !p->winograd; i++)
        copy_panel(rows + i * BLOCK, (size_t)(RR * BLOCK), count, BLOCK,
                   (float *)(packed + at) + i * WORDS * BLOCK);
}

void conv_pack(int kb, int part, void *weights)
{
    const struct conv_weights *a = weights;
    const struct conv_plan *p = a->p;
    float *rows = p->own[part].pack;
    if (p->s.first)
        take_rows(p, kb, 0, p->s.C, a->w,
                  (float *)p->w + packed_at(p, kb, 0, p->in.blocks));
    for (int cb = 0; cb < p->in.blocks && !p->s.first; cb++) {
        int cs = present(p->s.C, cb);
        take_rows(p, kb, cb, cs, a->w, rows);
        put_rows(p, cs, rows, p->w, kb, cb, p->in.blocks);
    }
}

/* k and c are exchanged; Winograd's method also rotates the kernels. */
void conv_turn(int kb, int part, void *weights)
{
    const struct conv_weights *a = weights;
    const struct conv_plan *p = a->p;
    int RR = p->s.R * p->s.R, ks = present(p->s.K, kb);
    size_t ld = (size_t)(RR * BLOCK);
    float *rows = p->own[part].pack, *turned = rows + ld * BLOCK; /* [k][R*R][BLOCK c] */
    for (int cb = 0; cb < p->in.blocks; cb++) {
        int cs = present(p->s.C, cb);
        take_rows(p, kb, cb, cs, a->w, rows);
        if (cs < BLOCK)
            memset(turned, 0, ld * BLOCK * sizeof(float));
        for (int i = 0; i < RR; i++) {
            int to = p->winograd ? RR - 1 - i : i;
            transpose(rows + i * BLOCK, ld, cs, ks, turned + to * BLOCK, ld);
        }
        put_rows(p, ks, turned, p->turned, cb, kb, p->full.blocks);
    }
}

void conv_unpack(int kb, int part, void *weights)
{
    const struct conv_weights *a = weights;
    const struct conv_plan *p = a->p;
    float *rows = p->own[part].pack, *sum = p->own[0].dw;
    int RR = p->s.R * p->s.R, ks = present(p->s.K, kb), blocks = p->in.blocks;
    size_t features = p->taps / (size_t)p->full.blocks, first = (size_t)kb * features;
    size_t point = (size_t)(blocks * BLOCK * BLOCK), ld = (size_t)(p->s.C * RR);
    for (int i = 1; i < p->threads; i++)
        for (size_t j = first; j < first + features; j++)
            sum[j] += p->own[i].dw[j];
    if (p->s.first)
        transpose(sum + first, BLOCK, p->s.C * RR, ks, a->dw + plain_at(p, kb, 0), ld);
    for (int cb = 0; cb < blocks && !p->s.first; cb++) {
        int cs = present(p->s.C, cb);
        const float *from = sum + packed_at(p, kb, cb, blocks);
        if (p->winograd)
            winograd_unpack(p->winograd, cs, from, point, rows);
        for (int i = 0; i < RR && !p->winograd; i++)
            for (int c = 0; c < cs; c++)
                memcpy(rows + (c * RR + i) * BLOCK, from + (i * BLOCK + c) * BLOCK,
                       BLOCK * sizeof(float));
        transpose(rows, BLOCK, cs * RR, ks, a->dw + plain_at(p, kb, cb), ld);
    }
}
