/* worker/kernels/norm_share.h - batch normalisation over several ranks' batches
 *
 * With n_r numbers of mean m_r and variance v_r on rank r,
 *     N = sum n_r,   mean = sum(n_r m_r) / N,   var = sum(n_r (v_r + m_r^2)) / N -
 * mean^2. The sums are doubles, so that the difference is as accurate as floats can
 * store.
 */
#ifndef WORKER_KERNELS_NORM_SHARE_H
#define WORKER_KERNELS_NORM_SHARE_H

#include "worker/kernels/kernels.h"

struct norm_share {
    norm_sum_fn sum; /* NULL: one rank */
    void *arg;
    double *v;    /* [2 C + 1] */
    double count; /* N of the last pass with `learn`; this rank's own number if alone */
};

/* Replaces mean[c] and var[c] of `own` numbers by those over all ranks' numbers. With
 * own == 0 their initial values are ignored. */
static inline void norm_share_moments(struct norm_share *s, size_t C, double own,
                                      float *mean, float *var)
{
    for (size_t c = 0; c < C; c++) {
        double m = (double)mean[c];
        s->v[c] = own > 0 ? own * m : 0;
        s->v[C + c] = own > 0 ? own * ((double)var[c] + m * m) : 0;
    }
    s->v[2 * C] = own;
    s->sum(s->v, 2 * C + 1, s->arg);
    s->count = s->v[2 * C];
    for (size_t c = 0; c < C; c++) {
        double m = s->v[c] / s->count, v = s->v[C + c] / s->count - m * m;
        mean[c] = (float)m;
        var[c] = (float)(v > 0 || v != v ? v : 0);
    }
}

/* Replaces a[c] and b[c] by their sums over the ranks. */
static inline void norm_share_sums(struct norm_share *s, size_t C, float *a, float *b)
{
    for (size_t c = 0; c < C; c++) {
        s->v[c] = (double)a[c];
        s->v[C + c] = (double)b[c];
    }
    s->sum(s->v, 2 * C, s->arg);
    for (size_t c = 0; c < C; c++) {
        a[c] = (float)s->v[c];
        b[c] = (float)s->v[C + c];
    }
}

#endif
