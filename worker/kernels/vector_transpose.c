/* worker/kernels/vector_transpose.c - transposition, for packing and products
 *
 * A square of VL rows takes log2(VL) rounds of interleaving rows i and i + VL/2.
 */
#include "worker/kernels/vector.h"

#if !__has_builtin(__builtin_shufflevector) /* GCC before 12 */
#define __builtin_shufflevector(a, b, ...) __builtin_shuffle(a, b, (bits){__VA_ARGS__})
#endif

#if VL == 16
#define LOW_HALVES  0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define HIGH_HALVES 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif VL == 8
#define LOW_HALVES  0, 8, 1, 9, 2, 10, 3, 11
#define HIGH_HALVES 4, 12, 5, 13, 6, 14, 7, 15
#else
#define LOW_HALVES  0, 4, 1, 5
#define HIGH_HALVES 2, 6, 3, 7
#endif

/* Of `rows` rows, at most VL: the others are zeros. */
ALWAYS void transpose_square(int rows, const float *from, size_t ldf, float *to,
                             size_t ldt)
{
    vec a[VL], b[VL];
    UNROLL for (int i = 0; i < VL; i++) a[i] =
        i < rows ? load(from + (size_t)i * ldf) : (vec){0};
    UNROLL for (int round = 1; round < VL; round *= 2)
    {
        UNROLL for (int i = 0; i < VL / 2; i++)
        {
            b[2 * i] = __builtin_shufflevector(a[i], a[i + VL / 2], LOW_HALVES);
            b[2 * i + 1] = __builtin_shufflevector(a[i], a[i + VL / 2], HIGH_HALVES);
        }
        UNROLL for (int i = 0; i < VL; i++) a[i] = b[i];
    }
    UNROLL for (int i = 0; i < VL; i++) store(to + (size_t)i * ldt, a[i]);
}

/* Squares come along the longer rows: the lines of those may all fall into a few sets of
 * the cache, and then stay there for one square only. */
void transpose(const float *from, size_t ldf, int rows, int cols, float *to, size_t ldt)
{
    int whole_rows = rows / VL * VL, whole_cols = cols / VL * VL;
    bool along_to = ldt > ldf;
    for (int i = 0; i < (along_to ? whole_cols : whole_rows); i += VL)
        for (int j = 0; j < (along_to ? whole_rows : whole_cols); j += VL) {
            int r = along_to ? j : i, c = along_to ? i : j;
            transpose_square(VL, from + (size_t)r * ldf + c, ldf,
                             to + (size_t)c * ldt + r, ldt);
        }
    for (int r = 0; r < rows; r++)
        for (int c = r < whole_rows ? whole_cols : 0; c < cols; c++)
            to[(size_t)c * ldt + r] = from[(size_t)r * ldf + c];
}

void transpose_rows(int rows, const float *from, size_t ldf, int cols, float *to)
{
    int c = 0, last = (rows - 1) / VL * VL;
    for (; c + VL <= cols; c += VL)
        for (int r = last; r >= 0; r -= VL) /* its excess: the first rows of the next c */
            transpose_square(rows - r, from + (size_t)r * ldf + c, ldf, to + c * rows + r,
                             (size_t)rows);
    for (; c < cols; c++)
        for (int r = 0; r < rows; r++)
            to[c * rows + r] = from[(size_t)r * ldf + (size_t)c];
}
