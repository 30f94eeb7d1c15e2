/* bench/engine_openblas.c - layers through cblas_sgemm; images are NCHW throughout
 *
 * A convolution unfolds one image at a time (C*R*R rows of OH*OW), so that the unfolded
 * image is multiplied while it is in the cache. */
#include "bench/engines.h"

#include "common/mem.h"
#include "worker/kernels/scratch.h"

#include <cblas.h>
#include <string.h>

struct linear_plan {
    struct linear_shape s;
    float *g;
};

static struct linear_plan *linear_plan(struct linear_shape s, struct scratches *memory)
{
    struct linear_plan *p = scratch_bytes(memory, sizeof(*p));
    p->s = s;
    p->g = scratch_in(memory, (size_t)s.B * (size_t)s.K);
    return p;
}

static void linear(struct linear_plan *p, int n, const float *x, const float *w,
                   const float *bias, float *y)
{
    int C = p->s.C, K = p->s.K;
    for (int b = 0; b < n; b++)
        memcpy(y + (size_t)b * (size_t)K, bias, (size_t)K * sizeof(float));
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, n, K, C, 1, x, C, w, C, 1, y, K);
    for (int i = 0; p->s.relu && i < n * K; i++)
        y[i] = y[i] > 0 ? y[i] : 0;
}

static void linear_back(struct linear_plan *p, int n, const float *x, const float *w,
                        const float *y, const float *dy, float *dw, float *factors,
                        float *dbias, float *dx)
{
    int C = p->s.C, K = p->s.K;
    for (int i = 0; i < n * K; i++)
        p->g[i] = p->s.relu && !(y[i] > 0) ? 0 : dy[i];
    memset(dbias, 0, (size_t)K * sizeof(float));
    for (int i = 0; i < n * K; i++)
        dbias[i % K] += p->g[i];
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, K, C, n, 1, p->g, K, x, C, 0, dw,
                C);
    if (dx)
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, C, K, 1, p->g, K, w, C,
                    0, dx, C);
}

struct conv_plan {
    struct conv_shape s;
    int OH, OW, taps;
    float *unfolded; /* [C*R*R][OH*OW] */
    float *full;     /* [K][OH*OW]: before pooling, or its gradient */
    uint8_t *arg;
};

static struct conv_plan *conv_plan(struct conv_shape s, struct scratches *memory)
{
    struct conv_plan *p = scratch_bytes(memory, sizeof(*p));
    p->s = s;
    p->OH = s.H - s.R + 1;
    p->OW = s.W - s.R + 1;
    p->taps = s.C * s.R * s.R;
    p->unfolded = scratch_in(memory, (size_t)(p->taps * p->OH * p->OW));
    p->full = scratch_in(memory, (size_t)(s.K * p->OH * p->OW));
    p->arg = scratch_bytes(memory, (size_t)s.B * (size_t)(s.K * p->OH * p->OW));
    return p;
}

static size_t conv_floats(const struct conv_plan *p)
{
    int shrink = p->s.pool ? 2 : 1;
    return (size_t)(p->s.K * (p->OH / shrink) * (p->OW / shrink));
}

static void unfold(const struct conv_plan *p, const float *x)
{
    float *to = p->unfolded;
    for (int t = 0; t < p->taps; t++) {
        int R = p->s.R, c = t / (R * R), r = t / R % R, q = t % R;
        const float *from = x + (c * p->s.H + r) * p->s.W + q;
        for (int oh = 0; oh < p->OH; oh++, to += p->OW, from += p->s.W)
            memcpy(to, from, (size_t)p->OW * sizeof(float));
    }
}

static void fold(const struct conv_plan *p, float *dx)
{
    const float *from = p->unfolded;
    memset(dx, 0, (size_t)(p->s.C * p->s.H * p->s.W) * sizeof(float));
    for (int t = 0; t < p->taps; t++) {
        int R = p->s.R, c = t / (R * R), r = t / R % R, q = t % R;
        float *to = dx + (c * p->s.H + r) * p->s.W + q;
        for (int oh = 0; oh < p->OH; oh++, to += p->s.W)
            for (int ow = 0; ow < p->OW; ow++)
                to[ow] += *from++;
    }
}

static void pool(const struct conv_plan *p, float *y, uint8_t *arg)
{
    const float *row = p->full;
    for (int k = 0; k < p->s.K; k++, row += p->OH % 2 * p->OW)
        for (int i = 0; i < p->OH / 2; i++, row += 2 * p->OW)
            for (int j = 0; j < p->OW / 2; j++) {
                const float *a = row + 2 * j, *d = a + p->OW;
                float top = a[1] > a[0] ? a[1] : a[0], low = d[1] > d[0] ? d[1] : d[0];
                *arg++ = low > top ? 2 + (d[1] > d[0]) : a[1] > a[0];
                *y++ = low > top ? low : top;
            }
}

static void conv(struct conv_plan *p, int n, const float *x, const float *w,
                 const float *bias, float *y)
{
    int pixels = p->OH * p->OW;
    for (int b = 0; b < n; b++, x += p->s.C * p->s.H * p->s.W, y += conv_floats(p)) {
        float *full = p->s.pool ? p->full : y;
        unfold(p, x);
        for (int k = 0; k < p->s.K; k++)
            for (int i = 0; i < pixels; i++)
                full[k * pixels + i] = bias[k];
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, p->s.K, pixels, p->taps, 1,
                    w, p->taps, p->unfolded, pixels, 1, full, pixels);
        for (int i = 0; i < p->s.K * pixels; i++)
            full[i] = full[i] > 0 ? full[i] : 0;
        if (p->s.pool)
            pool(p, y, p->arg + (size_t)b * conv_floats(p));
    }
}

static void unpool(const struct conv_plan *p, const float *y, const float *dy,
                   const uint8_t *arg)
{
    size_t all = (size_t)(p->s.K * p->OH * p->OW);
    if (!p->s.pool) {
        for (size_t i = 0; i < all; i++)
            p->full[i] = y[i] > 0 ? dy[i] : 0;
        return;
    }
    memset(p->full, 0, all * sizeof(float));
    for (int k = 0; k < p->s.K; k++)
        for (int i = 0; i < p->OH / 2; i++)
            for (int j = 0; j < p->OW / 2; j++, y++, dy++, arg++)
                p->full[(k * p->OH + 2 * i + *arg / 2) * p->OW + 2 * j + *arg % 2] =
                    *y > 0 ? *dy : 0;
}

static void conv_back(struct conv_plan *p, int n, const float *x, const float *w,
                      const float *y, const float *dy, float *dw, float *dbias, float *dx)
{
    int pixels = p->OH * p->OW, in = p->s.C * p->s.H * p->s.W, K = p->s.K, taps = p->taps;
    size_t out = conv_floats(p);
    memset(dbias, 0, (size_t)K * sizeof(float));
    for (int b = 0; b < n; b++, x += in, y += out, dy += out) {
        unpool(p, y, dy, p->arg + (size_t)b * out);
        for (int i = 0; i < K * pixels; i++)
            dbias[i / pixels] += p->full[i];
        unfold(p, x);
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, K, taps, pixels, 1, p->full,
                    pixels, p->unfolded, pixels, b > 0, dw, taps);
        if (dx == NULL)
            continue;
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, taps, pixels, K, 1, w, taps,
                    p->full, pixels, 0, p->unfolded, pixels);
        fold(p, dx);
        for (int i = 0; i < in; i++)
            dx[i] = x[i] > 0 ? dx[i] : 0;
        dx += in;
    }
}

bool use_openblas(struct kernels *k)
{
    openblas_set_num_threads(1);
    k->name = "openblas";
    TAKE_LAYERS(k);
    return true;
}
