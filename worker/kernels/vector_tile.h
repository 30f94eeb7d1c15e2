/* worker/kernels/vector_tile.h - rows of a product of matrices, by BLOCK columns
 *
 *     c[T][BLOCK] = sum over i of a[i][0..T) panel[i][0..BLOCK)
 *
 * The panel is packed; a row of `a` has T adjacent words, `lda` words from one row to the
 * next.
 */
#ifndef WORKER_KERNELS_VECTOR_TILE_H
#define WORKER_KERNELS_VECTOR_TILE_H

#include "worker/kernels/vector_elem.h"

/* The sum continues that in c, if `more`, so that its result does not depend on how it
 * was divided. `extra` is added: c itself, one row for all rows (`ld` 0), or NULL. */
ALWAYS void tile_columns(int T, int count, const float *a, size_t lda, const float *panel,
                         bool more, const float *extra, size_t ld, float *c, size_t ldc)
{
    vec sum[TILE_MAX][2];
    UNROLL for (int j = 0; j < T; j++)
    {
        sum[j][0] = more ? load(c + (size_t)j * ldc) : (vec){0};
        sum[j][1] = more ? load(c + (size_t)j * ldc + VL) : (vec){0};
    }
    UNROLL_2 for (int i = 0; i < count; i++)
    {
        vec lo = load(panel), hi = load(panel + VL);
        UNROLL for (int j = 0; j < T; j++)
        {
            sum[j][0] = multiply_add(sum[j][0], a[j], lo);
            sum[j][1] = multiply_add(sum[j][1], a[j], hi);
        }
        a += lda;
        panel += BLOCK;
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

/* The same for any T and, in a last panel, the first `width` columns. */
static inline void tile_rows(int T, int count, const float *a, size_t lda,
                             const float *panel, bool more, const float *extra, size_t ld,
                             float *c, size_t ldc, int width)
{
    float narrow[TILE_MAX * BLOCK];
    size_t bytes = (size_t)width * sizeof(float);
    if (width == BLOCK) {
        WITH_TILE(T, tile_columns, count, a, lda, panel, more, extra, ld, c, ldc);
        return;
    }
    for (int j = 0; (more || extra == c) && j < T; j++)
        memcpy(narrow + j * BLOCK, c + (size_t)j * ldc, bytes);
    if (extra == c) {
        extra = narrow;
        ld = BLOCK;
    }
    WITH_TILE(T, tile_columns, count, a, lda, panel, more, extra, ld, narrow, BLOCK);
    for (int j = 0; j < T; j++)
        memcpy(c + (size_t)j * ldc, narrow + j * BLOCK, bytes);
}

#endif
