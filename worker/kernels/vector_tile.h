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

/* `start` is added: c itself, one row for all rows (`ld` 0), or NULL. */
ALWAYS void tile_columns(int T, int count, const float *a, size_t lda, const float *panel,
                         const float *start, size_t ld, float *c, size_t ldc)
{
    vec sum[TILE_MAX][2];
    UNROLL for (int j = 0; j < T; j++) sum[j][0] = sum[j][1] = (vec){0};
    for (int i = 0; i < count; i++, a += lda, panel += BLOCK) {
        vec lo = load(panel), hi = load(panel + VL);
        UNROLL for (int j = 0; j < T; j++)
        {
            sum[j][0] = multiply_add(sum[j][0], a[j], lo);
            sum[j][1] = multiply_add(sum[j][1], a[j], hi);
        }
    }
    UNROLL for (int j = 0; start && j < T; j++)
    {
        sum[j][0] += load(start + (size_t)j * ld);
        sum[j][1] += load(start + (size_t)j * ld + VL);
    }
    UNROLL for (int j = 0; j < T; j++)
    {
        store(c + (size_t)j * ldc, sum[j][0]);
        store(c + (size_t)j * ldc + VL, sum[j][1]);
    }
}

/* The same for any T and, in a last panel, the first `width` columns. */
static inline void tile_rows(int T, int count, const float *a, size_t lda,
                             const float *panel, const float *start, size_t ld, float *c,
                             size_t ldc, int width)
{
    float narrow[TILE_MAX * BLOCK];
    size_t bytes = (size_t)width * sizeof(float);
    if (width == BLOCK) {
        WITH_TILE(T, tile_columns, count, a, lda, panel, start, ld, c, ldc);
        return;
    }
    for (int j = 0; start == c && j < T; j++)
        memcpy(narrow + j * BLOCK, c + (size_t)j * ldc, bytes);
    if (start == c) {
        start = narrow;
        ld = BLOCK;
    }
    WITH_TILE(T, tile_columns, count, a, lda, panel, start, ld, narrow, BLOCK);
    for (int j = 0; j < T; j++)
        memcpy(c + (size_t)j * ldc, narrow + j * BLOCK, bytes);
}

#endif
