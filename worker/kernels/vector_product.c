/* worker/kernels/vector_product.c - the products of matrices that convolutions are made
 * of; see vector_conv_impl.h */
#include "worker/kernels/vector_conv_impl.h"

/* count, row, column: p's, as constants where they may be. */
ALWAYS void product_tile(int T, bool floats, int count, int row, int column,
                         const struct product *p, const float *v, const float *u,
                         float *M)
{
    vec sum[TILE_MAX][2];
    UNROLL for (int j = 0; j < T; j++) UNROLL for (int half = 0; half < 2; half++)
        sum[j][half] = p->more ? load(M + j * BLOCK + half * VL) : (vec){0};
    for (int b = 0; b < p->blocks; b++, v += p->v_block, u += p->u_block) {
        const float *x = v, *w = u;
        UNROLL_2 for (int i = 0; i < count; i++)
        {
            vec lo = load(w), hi = load(w + VL);
            UNROLL for (int j = 0; j < T; j++)
            {
                float word = x[j * column];
                sum[j][0] =
                    floats ? sum[j][0] + word * lo : multiply_add(sum[j][0], word, lo);
                sum[j][1] =
                    floats ? sum[j][1] + word * hi : multiply_add(sum[j][1], word, hi);
            }
            x += row;
            w += BLOCK;
        }
    }
    UNROLL for (int j = 0; j < T; j++) UNROLL for (int half = 0; half < 2; half++)
        store(M + j * BLOCK + half * VL, sum[j][half]);
}

/* T columns of one block of outputs; inline, since a call for each tile costs 3 %. */
ALWAYS void multiply_columns(int T, const struct product *p, const float *v,
                             const float *u, float *M)
{
    bool floats = PER_WORD == 1 || p->floats;
    int count = p->count, row = p->v_row, column = p->v_column;
    if (floats && column == 1)
        WITH_TILE(T, product_tile, true, count, row, 1, p, v, u, M);
    else if (floats && column == BLOCK && count == BLOCK)
        WITH_TILE(T, product_tile, true, BLOCK, 1, BLOCK, p, v, u, M);
    else if (floats)
        WITH_TILE(T, product_tile, true, count, 1, column, p, v, u, M);
    else if (column == 1)
        WITH_TILE(T, product_tile, false, count, row, 1, p, v, u, M);
    else
        WITH_TILE(T, product_tile, false, WORDS, 1, WORDS, p, v, u, M);
}

void conv_multiply(const struct product *p, const float *v, const float *u, float *M)
{
    for (int k = 0; k < p->outputs; k++, u += p->u_output, M += p->M_output)
        for (int i = 0, T; i < p->columns; i += T) {
            T = next_tile(p->columns - i, TILE);
            multiply_columns(T, p, v + (size_t)i * (size_t)p->v_column, u, M + i * BLOCK);
        }
}
