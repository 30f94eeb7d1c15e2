/* tests/worker/kernels/factors.h - rows of a gradient made of several batches' factors */
#ifndef TESTS_WORKER_KERNELS_FACTORS_H
#define TESTS_WORKER_KERNELS_FACTORS_H

#include "tests/support/suite.h"

#include "common/mem.h"
#include "worker/kernels/kernels.h"
#include "worker/kernels/scratch.h"

#include <string.h>

/* A batch of n and one of half as many, their rows [K/3, K) made in two pieces, are to
 * the bit the sum of what linear_back() makes of each; and so are dbias and dx. */
static inline void check_factors(const struct kernels *k, struct linear_plan *p,
                                 struct linear_shape s, int n, const float *x,
                                 const float *w, const float *y, const float *dy)
{
    size_t K = (size_t)s.K, C = (size_t)s.C, from = K / 3, cut = from + (K - from) / 2;
    float *sum = scratch(K * C), *dw = scratch(K * C), *rows = scratch(K * C);
    float *factors[2], *dbias[2] = {scratch(K), scratch(K)};
    float *dx[2] = {scratch((size_t)n * C), scratch((size_t)n * C)};
    for (int i = 0; i < 2; i++) {
        int samples = i == 0 ? n : n / 2;
        factors[i] = scratch(k->linear_factors(p));
        k->linear_back(p, samples, x, w, y, dy, dw, NULL, dbias[0], dx[0]);
        k->linear_back(p, samples, x, w, y, dy, NULL, factors[i], dbias[1], dx[1]);
        for (size_t j = 0; j < K * C; j++)
            sum[j] = i == 0 ? dw[j] : sum[j] + dw[j];
        ck_assert_mem_eq(dbias[1], dbias[0], K * sizeof(float));
        ck_assert_mem_eq(dx[1], dx[0], (size_t)n * C * sizeof(float));
    }
    k->linear_rows(p, factors, 2, (int)from, (int)cut, rows + from * C);
    k->linear_rows(p, factors, 2, (int)cut, s.K, rows + cut * C);
    for (size_t j = from * C; j < K * C; j++) /* a passed assertion is a system call */
        if (memcmp(&rows[j], &sum[j], sizeof(float)) != 0)
            ck_abort_msg("%s, %d samples: dw[%zu] of factors is %.9g, not %.9g", k->name,
                         n, j, (double)rows[j], (double)sum[j]);
    for (int i = 0; i < 2; i++) {
        free(factors[i]);
        free(dbias[i]);
        free(dx[i]);
    }
    free(sum);
    free(dw);
    free(rows);
}

#endif
