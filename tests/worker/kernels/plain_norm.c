/* tests/worker/kernels/plain_norm.c - the reference for batch normalisation and the mean
 * of an image, by their formulas; see plain.c */
#include "worker/kernels/norm_share.h"
#include "worker/kernels/scratch.h"
#include "worker/kernels/tables.h"

#include <math.h>
#include <stdlib.h>

NORM_KERNELS(DECLARE_KERNEL, plain)

struct norm_plan {
    struct norm_shape s;
    double *mean, *scale; /* [C]: of the last pass; 1 / sqrt(var + eps) */
    float *a, *b;         /* [C]: to be summed over the ranks */
    struct norm_share share;
};

struct norm_plan *plain_norm_plan(struct norm_shape s, struct scratches *memory)
{
    struct norm_plan *p = scratch_bytes(memory, sizeof(*p));
    size_t C = (size_t)s.C;
    p->s = s;
    p->mean = scratch_bytes(memory, C * sizeof(double));
    p->scale = scratch_bytes(memory, C * sizeof(double));
    p->a = scratch_in(memory, C);
    p->b = scratch_in(memory, C);
    p->share.v = scratch_bytes(memory, (2 * C + 1) * sizeof(double));
    return p;
}

void plain_norm_share(struct norm_plan *p, norm_sum_fn sum, void *arg)
{
    p->share.sum = sum;
    p->share.arg = arg;
}

/* Runs f(at) for the elements of channel c in n images; `at` is an index in floats. */
#define FOR_CHANNEL(c, n, s, at)                                                        \
    for (size_t b_ = 0, plane_ = (size_t)(s).H * (size_t)(s).W; b_ < (size_t)(n); b_++) \
        for (size_t at = (b_ * (size_t)(s).C + (size_t)(c)) * plane_,                   \
                    end_ = at + plane_;                                                 \
             at < end_; at++)

/* Mean and variance of each channel: of this batch, or of all ranks'. */
static void learn(struct norm_plan *p, int n, const float *x, double *variance)
{
    double count = (double)n * p->s.H * p->s.W;
    p->share.count = count;
    for (int c = 0; c < p->s.C; c++) {
        double sum = 0, squares = 0;
        FOR_CHANNEL(c, n, p->s, i) sum += (double)x[i];
        p->mean[c] = sum / count;
        FOR_CHANNEL(c, n, p->s, i) squares += pow((double)x[i] - p->mean[c], 2);
        variance[c] = squares / count;
    }
    if (!p->share.sum)
        return;
    for (int c = 0; c < p->s.C; c++) {
        p->a[c] = (float)p->mean[c];
        p->b[c] = (float)variance[c];
    }
    norm_share_moments(&p->share, (size_t)p->s.C, count, p->a, p->b);
    for (int c = 0; c < p->s.C; c++) {
        p->mean[c] = (double)p->a[c];
        variance[c] = (double)p->b[c];
    }
}

static void remember(struct norm_plan *p, int c, double variance, float *running)
{
    double n = p->share.count, step = (double)p->s.momentum;
    double unbiased = variance * n / (n > 1 ? n - 1 : 1);
    float *mean = running + c, *var = mean + p->s.C;
    if (!isfinite(variance)) /* then the mean is not usable either */
        return;
    *mean = (float)((1 - step) * (double)*mean + step * p->mean[c]);
    *var = (float)((1 - step) * (double)*var + step * unbiased);
}

void plain_norm(struct norm_plan *p, int n, const float *x, const float *w,
                const float *bias, float *running, bool learning, const float *shortcut,
                float *y)
{
    double *variance = p->scale;
    if (learning)
        learn(p, n, x, variance);
    for (int c = 0; c < p->s.C; c++) {
        if (learning) {
            remember(p, c, variance[c], running);
        } else {
            p->mean[c] = (double)running[c];
            variance[c] = (double)running[p->s.C + c];
        }
        p->scale[c] = 1 / sqrt(variance[c] + (double)p->s.eps);
        FOR_CHANNEL(c, n, p->s, i)
        {
            double v = (double)w[c] * ((double)x[i] - p->mean[c]) * p->scale[c] +
                       (double)bias[c] + (shortcut ? (double)shortcut[i] : 0);
            y[i] = (float)(p->s.relu && v < 0 ? 0 : v);
        }
    }
}

/* With xhat = (x - mean) scale: dx = w scale (g - mean of g - xhat * mean of g xhat). */
void plain_norm_back(struct norm_plan *p, int n, const float *x, const float *w,
                     const float *y, const float *dy, float *dw, float *dbias, float *dx,
                     float *dshortcut)
{
    double count = p->share.count;
    for (int c = 0; c < p->s.C; c++) {
        double sum = 0, dot = 0;
        FOR_CHANNEL(c, n, p->s, i)
        {
            double g = p->s.relu && !(y[i] > 0) ? 0 : (double)dy[i];
            sum += g;
            dot += g * ((double)x[i] - p->mean[c]) * p->scale[c];
        }
        dbias[c] = p->b[c] = (float)sum;
        dw[c] = p->a[c] = (float)dot;
    }
    if (p->share.sum)
        norm_share_sums(&p->share, (size_t)p->s.C, p->a, p->b);
    for (int c = 0; c < p->s.C; c++) {
        double dot = (double)p->a[c], sum = (double)p->b[c];
        FOR_CHANNEL(c, n, p->s, i)
        {
            double g = p->s.relu && !(y[i] > 0) ? 0 : (double)dy[i];
            double xhat = ((double)x[i] - p->mean[c]) * p->scale[c];
            dx[i] = (float)((double)w[c] * p->scale[c] *
                            (g - sum / count - xhat * dot / count));
            if (dshortcut)
                dshortcut[i] = (float)g;
        }
    }
}

void plain_mean(struct map_shape s, int n, const float *x, float *y)
{
    int pixels = s.H * s.W;
    for (int i = 0; i < n * s.C; i++, x += pixels) {
        double sum = 0;
        for (int j = 0; j < pixels; j++)
            sum += (double)x[j];
        y[i] = (float)(sum / pixels);
    }
}

void plain_mean_back(struct map_shape s, int n, const float *dy, float *dx)
{
    int pixels = s.H * s.W;
    for (int i = 0; i < n * s.C * pixels; i++)
        dx[i] = dy[i / pixels] / (float)pixels;
}

size_t plain_map_floats(struct map_shape s)
{
    return (size_t)s.C * (size_t)s.H * (size_t)s.W;
}
