/* worker/kernels/vector_product.h - the products of matrices that convolutions are made
 * of
 *
 * Unlike gemm() (vector_gemm.c) they pack nothing: both operands are read where they are.
 */
#ifndef WORKER_KERNELS_VECTOR_PRODUCT_H
#define WORKER_KERNELS_VECTOR_PRODUCT_H

#include "worker/kernels/vector_elem.h"

/* M[outputs][columns][BLOCK] = sum over blocks and i of v[block][i][column] times
 * u[output][block][i][BLOCK], at these distances in words */
struct product {
    bool floats; /* words are floats, with bf16, too */
    bool more;   /* added to M */
    int blocks, count, columns, outputs;
    size_t v_block, u_block, u_output, M_output;
    int v_row, v_column; /* one of them is 1; of words v_column is 1 or WORDS */
};

#define conv_multiply NAMED(conv_multiply)
void conv_multiply(const struct product *p, const float *v, const float *u, float *M);

#endif
