/* worker/kernels/plain_norm.c - the reference for batch normalisation and the mean of an
 * image, by their formulas; see plain.c */
#include "common/mem.h"
#include "worker/kernels/plain.h"

#include <math.h>
#include <stdlib.h>

struct norm_plan {
    struct norm_shape s;
    double *mean, *scale; /* [C]: of the last pass; 1 / sqrt(var + eps) */
};

struct norm_plan *plain_norm_plan(struct norm_shape s, struct ddp_err *err)
{
    struct norm_plan *p = xcalloc(1, sizeof(*p));
    p->s = s;
    p->mean = xcalloc((size_t)s.C, sizeof(double));
    p->scale = xcalloc((size_t)s.C, sizeof(double));
    return p;
}

void plain_norm_plan_free(struct norm_plan *p)
{
    if (p == NULL)
        return;
    free(p->mean);
    free(p->scale);
    free(p);
}

/* f(at) for the places of channel c in n images; `at` counts in floats. */
#define FOR_CHANNEL(c, n, s, at)                                                        \
    for (size_t b_ = 0, plane_ = (size_t)(s).H * (size_t)(s).W; b_ < (size_t)(n); b_++) \
        for (size_t at = (b_ * (size_t)(s).C + (size_t)(c)) * plane_,                   \
                    end_ = at + plane_;                                                 \
             at < end_; at++)

static void learn_channel(struct norm_plan *p, int n, int c, const float *x,
                          float *running)
{
    double count = (double)n * p->s.H * p->s.W, sum = 0, var = 0;
    FOR_CHANNEL(c, n, p->s, i) sum += (double)x[i];
    p->mean[c] = sum / count;
    FOR_CHANNEL(c, n, p->s, i) var += pow((double)x[i] - p->mean[c], 2);
    p->scale[c] = 1 / sqrt(var / count + (double)p->s.eps);
    double unbiased = var / (count > 1 ? count - 1 : 1), step = (double)p->s.momentum;
    float *mean = running + c, *variance = mean + p->s.C;
    *mean = (float)((1 - step) * (double)*mean + step * p->mean[c]);
    *variance = (float)((1 - step) * (double)*variance + step * unbiased);
}

void plain_norm(struct norm_plan *p, int n, const float *x, const float *w,
                const float *bias, float *running, bool learn, const float *shortcut,
                float *y)
{
    for (int c = 0; c < p->s.C; c++) {
        if (learn) {
            learn_channel(p, n, c, x, running);
        } else {
            p->mean[c] = (double)running[c];
            p->scale[c] = 1 / sqrt((double)running[p->s.C + c] + (double)p->s.eps);
        }
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
    double count = (double)n * p->s.H * p->s.W;
    for (int c = 0; c < p->s.C; c++) {
        double sum = 0, dot = 0;
        FOR_CHANNEL(c, n, p->s, i)
        {
            double g = p->s.relu && !(y[i] > 0) ? 0 : (double)dy[i];
            sum += g;
            dot += g * ((double)x[i] - p->mean[c]) * p->scale[c];
        }
        dbias[c] = (float)sum;
        dw[c] = (float)dot;
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
