/* worker/kernels/vector_product.c - the products of matrices that convolutions are made
 * of; see vector_conv_impl.h */
#include "worker/kernels/vector_conv_impl.h"
#include "worker/kernels/vector_tile.h"

/* With count, row and column as constants where they may be. */
#define product_tile(T, floats, count, row, column, p, v, u, M)                     \
    tile_columns(T, floats, (p)->blocks, (p)->v_block, (p)->u_block, count, v, row, \
                 column, u, (p)->more, NULL, 0, M, BLOCK)

/* T columns of one block of outputs; inline, since a call for each tile costs 3 %. */
ALWAYS void multiply_columns(int T, const struct product *p, const float *v,
                             const float *u, float *M)
{
    bool floats = PER_WORD == 1 || p->floats;
    int count = p->count, column = p->v_column;
    size_t row = (size_t)p->v_row;
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
