/* worker/kernels/vector_tile.h - rows of a product of matrices, by BLOCK columns
 *
 *     c[T][BLOCK] = sum over i of a[i][0..T) panel[i][0..BLOCK)
 *
 * The panel is packed. Words of `a` are `row` apart from one i to the next, and `column`
 * within one.
 */
#ifndef WORKER_KERNELS_VECTOR_TILE_H
#define WORKER_KERNELS_VECTOR_TILE_H

#include "worker/kernels/vector_elem.h"

/* The sum over some blocks, each with its own part of `a` and panel, which are so far
 * apart; or with `more` it continues that in c, so that its result does not depend on how
 * it was divided. Words are `floats` with bf16, too. `extra` is added: c itself, one row
 * for all rows (`ld` 0), or NULL. */
ALWAYS void tile_columns(int T, bool floats, int blocks, size_t a_block,
                         size_t panel_block, int count, const float *a, size_t row,
                         int column, const float *panel, bool more, const float *extra,
                         size_t ld, float *c, size_t ldc)
{
    vec sum[TILE_MAX][2];
    UNROLL for (int j = 0; j < T; j++)
    {
        sum[j][0] = more ? load(c + (size_t)j * ldc) : (vec){0};
        sum[j][1] = more ? load(c + (size_t)j * ldc + VL) : (vec){0};
    }
    for (int b = 0; b < blocks; b++, a += a_block, panel += panel_block) {
        const float *x = a, *w = panel;
        UNROLL_2 for (int i = 0; i < count; i++)
        {
            vec lo = load(w), hi = load(w + VL);
            UNROLL for (int j = 0; j < T; j++)
            {
                float v = x[j * column];
                sum[j][0] = floats ? sum[j][0] + v * lo : multiply_add(sum[j][0], v, lo);
                sum[j][1] = floats ? sum[j][1] + v * hi : multiply_add(sum[j][1], v, hi);
            }
            x += row;
            w += BLOCK;
        }
    }
    UNROLL for (int j = 0; extra && j < T; j++)
    {
        sum[j][0] += load(extra + (size_t)j * ld);
        sum[j][1] += load(extra + (size_t)j * ld + VL);
    }
    UNROLL for (int j = 0; j < T; j++)
    {
        store(c + (size_t)j * ldc, sum[j][0]);
        store(c + (size_t)j * ldc + VL, sum[j][1]);
    }
}

/* One block, any T and, in a last panel, the first `width` columns. */
static inline void tile_rows(int T, int count, const float *a, size_t lda,
                             const float *panel, bool more, const float *extra, size_t ld,
                             float *c, size_t ldc, int width)
{
    float narrow[TILE_MAX * BLOCK];
    size_t bytes = (size_t)width * sizeof(float);
    if (width == BLOCK) {
        WITH_TILE(T, tile_columns, false, 1, 0, 0, count, a, lda, 1, panel, more, extra,
                  ld, c, ldc);
        return;
    }
    for (int j = 0; (more || extra == c) && j < T; j++)
        memcpy(narrow + j * BLOCK, c + (size_t)j * ldc, bytes);
    if (extra == c) {
        extra = narrow;
        ld = BLOCK;
    }
    WITH_TILE(T, tile_columns, false, 1, 0, 0, count, a, lda, 1, panel, more, extra, ld,
              narrow, BLOCK);
    for (int j = 0; j < T; j++)
        memcpy(c + (size_t)j * ldc, narrow + j * BLOCK, bytes);
}

#endif
