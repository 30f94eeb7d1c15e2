/* worker/cuda/norm.cu - see kernels.h: batch normalisation
 *
 *     y = relu(w (x - mean) rstd + bias + shortcut)       rstd = 1 / sqrt(var + eps)
 * Backward, with xhat = (x - mean) rstd and g = dy where y > 0:
 *     dw = sum g xhat   dbias = sum g   dx = w rstd (g - mean of g - xhat mean of g xhat)
 *
 * Sums over a batch are of differences from the channel's first element, so that a
 * mean far from zero costs no precision. saved: mean[C], rstd[C], and in backward mean
 * of g[C], of g xhat[C].
 *
 * With several ranks, mean and variance are those of all their samples. shared has
 * count * mean, count * (var + mean^2) and the count; in backward the sums of g and g
 * xhat. These are doubles, so that the difference is accurate enough.
 */
#include "worker/cuda/channels.h"
#include "worker/cuda/device.h"

struct norm : cuda_norm {
    struct channels s, walk; /* launch shapes: of sums, of passes over all elements */
};

static struct norm norm_of(const struct cuda_norm *given)
{
    struct norm p;
    uint32_t V = channels_at_once(given->map);
    static_cast<struct cuda_norm &>(p) = *given;
    p.s = channels_to_sum(given->map, V);
    p.walk = channels_of(given->map, V, MOST_WALKERS, 4);
    return p;
}

/* ---- forward ---- */

template <class T, int V> struct norm_parts {
    const T *x;
    float first[V], sums[V][SUMS];
    __device__ void begin(uint32_t c)
    {
        load<V>(x + c, first);
    }
    __device__ void at(uint32_t i)
    {
        float v[V];
        load<V>(x + i, v);
        for (int k = 0; k < V; k++) {
            float d = v[k] - first[k];
            sums[k][0] += d;
            sums[k][1] += d * d;
        }
    }
};

struct moments {
    double mean, var;
};

/* Mean and variance of channel c in this batch, from its sums about the first element. */
template <class T>
static __device__ inline struct moments moments_of(const T *x, const struct norm &p,
                                                   uint32_t c, const double *sums)
{
    double count = (double)p.s.count, off = sums[0] / count, square = sums[1] / count;
    double var = square - off * off;
    var = square != square ? square : var > 0 ? var : 0;
    return {(double)get(x[c]) + off, var};
}

/* Stores what `count` elements are normalised by, and updates the running values. */
static __device__ inline void settle(const struct norm &p, uint32_t c, struct moments m,
                                     double count)
{
    uint32_t C = p.s.C;
    double step = (double)p.momentum;
    double unbiased = m.var * count / (count > 1 ? count - 1 : 1);
    p.saved[c] = (float)m.mean;
    p.saved[C + c] = (float)(1 / sqrt(m.var + (double)p.eps));
    if (c == 0)
        p.running[2 * C] += 1;
    if (unbiased - unbiased != 0) /* NaN or infinity */
        return;
    p.running[c] = (float)((1 - step) * (double)p.running[c] + step * m.mean);
    p.running[C + c] = (float)((1 - step) * (double)p.running[C + c] + step * unbiased);
}

template <class T> static __global__ void norm_learn(const T *x, struct norm p)
{
    uint32_t c, C = p.s.C;
    double count = (double)p.s.count, sums[SUMS];
    if (!channels_whole(p.s, p.room, &c, sums))
        return;
    struct moments m = {0, 0};
    if (p.s.count > 0)
        m = moments_of(x, p, c, sums);
    if (!p.shared) {
        settle(p, c, m, count);
        return;
    }
    p.shared[c] = count * m.mean;
    p.shared[C + c] = count * (m.var + m.mean * m.mean);
    if (c == 0)
        p.shared[2 * C] = count;
}

static __global__ void norm_learn_shared(struct norm p)
{
    uint32_t C = p.s.C;
    double count = p.shared[2 * C];
    for (EACH_OF(c, C)) {
        double mean = p.shared[c] / count;
        double var = p.shared[C + c] / count - mean * mean;
        settle(p, c, {mean, var < 0 ? 0 : var}, count); /* NaN stays NaN */
    }
}

static __global__ void norm_recall(struct norm p)
{
    uint32_t C = p.s.C;
    for (EACH_OF(c, C)) {
        p.saved[c] = p.running[c];
        p.saved[C + c] = (float)(1 / sqrt((double)p.running[C + c] + (double)p.eps));
    }
}

template <class T, int V> struct norm_apply {
    const T *x, *shortcut;
    T *y;
    struct norm p;
    float w[V], bias[V], mean[V], rstd[V];
    __device__ void begin(uint32_t c)
    {
        for (uint32_t k = 0; k < V; k++, c++) {
            w[k] = p.w[c];
            bias[k] = p.bias[c];
            mean[k] = p.saved[c];
            rstd[k] = p.saved[p.s.C + c];
        }
    }
    __device__ void at(uint32_t i)
    {
        float v[V], more[V];
        load<V>(x + i, v);
        if (shortcut)
            load<V>(shortcut + i, more);
        for (int k = 0; k < V; k++) {
            v[k] = w[k] * ((v[k] - mean[k]) * rstd[k]) + bias[k];
            if (shortcut)
                v[k] += more[k];
            v[k] = p.relu && v[k] < 0 ? 0 : v[k]; /* NaN stays NaN */
        }
        store<V>(v, y + i);
    }
};

void cuda_norm_measure(const struct cuda_norm *given, const void *x, cudaStream_t stream)
{
    struct norm p = norm_of(given);
    if (p.s.count > 0)
        FOR_PACK(p.map.type, channels_at_once(p.map) > 1,
                 SUM(norm_parts, p.s, p.room, nullptr, nullptr, stream, (const T *)x));
    FOR_TYPE(p.map.type,
             LAUNCH(norm_learn<T>, channels_ends(p.s), THREADS, stream, (const T *)x, p));
}

void cuda_norm(const struct cuda_norm *given, const void *x, const void *shortcut,
               bool learn, void *y, cudaStream_t stream)
{
    struct norm p = norm_of(given);
    if (!learn)
        LAUNCH(norm_recall, blocks_for(p.s.C), THREADS, stream, p);
    else if (p.shared)
        LAUNCH(norm_learn_shared, blocks_for(p.s.C), THREADS, stream, p);
    if (p.s.count == 0)
        return;
    FOR_PACK(
        p.map.type, channels_at_once(p.map) > 1,
        WALK(norm_apply, p.walk, stream, (const T *)x, (const T *)shortcut, (T *)y, p));
}

/* ---- backward ---- */

/* g and xhat of an element. */
template <class T, int V> struct with_gradient {
    const T *x, *y, *dy;
    struct norm p;
    float mean[V], rstd[V], g[V], xhat[V];
    __device__ void know(uint32_t c)
    {
        for (uint32_t k = 0; k < V; k++, c++) {
            mean[k] = p.saved[c];
            rstd[k] = p.saved[p.s.C + c];
        }
    }
    __device__ void look(uint32_t i)
    {
        float out[V];
        load<V>(x + i, xhat);
        load<V>(dy + i, g);
        if (p.relu)
            load<V>(y + i, out);
        for (int k = 0; k < V; k++) {
            xhat[k] = (xhat[k] - mean[k]) * rstd[k];
            g[k] = p.relu && !(out[k] > 0) ? 0 : g[k];
        }
    }
};

template <class T, int V> struct norm_back_parts {
    struct with_gradient<T, V> of;
    float sums[V][SUMS];
    __device__ void begin(uint32_t c)
    {
        of.know(c);
    }
    __device__ void at(uint32_t i)
    {
        of.look(i);
        for (int k = 0; k < V; k++) {
            sums[k][0] += of.g[k];
            sums[k][1] += of.g[k] * of.xhat[k];
        }
    }
};

/* This rank's sums, which are the gradients of w and bias, with `shared` or without. */
static __global__ void norm_back_whole(struct norm p, float *dw, float *dbias)
{
    uint32_t c, C = p.s.C;
    double count = (double)p.s.count, sums[SUMS];
    if (!channels_whole(p.s, p.room, &c, sums))
        return;
    double sum = p.s.count > 0 ? sums[0] : 0, dot = p.s.count > 0 ? sums[1] : 0;
    dbias[c] = (float)sum;
    dw[c] = (float)dot;
    if (p.shared) {
        p.shared[c] = sum;
        p.shared[C + c] = dot;
    } else {
        p.saved[2 * C + c] = (float)(sum / count);
        p.saved[3 * C + c] = (float)(dot / count);
    }
}

static __global__ void norm_back_shared(struct norm p)
{
    uint32_t C = p.s.C;
    double count = p.shared[2 * C];
    for (EACH_OF(c, C)) {
        p.saved[2 * C + c] = (float)(p.shared[c] / count);
        p.saved[3 * C + c] = (float)(p.shared[C + c] / count);
    }
}

template <class T, int V> struct norm_back_apply {
    struct with_gradient<T, V> of;
    T *dx, *dshortcut;
    float by[V], mean_g[V], mean_dot[V];
    __device__ void begin(uint32_t c)
    {
        uint32_t C = of.p.s.C;
        of.know(c);
        for (uint32_t k = 0; k < V; k++, c++) {
            by[k] = of.p.w[c] * of.rstd[k];
            mean_g[k] = of.p.saved[2 * C + c];
            mean_dot[k] = of.p.saved[3 * C + c];
        }
    }
    __device__ void at(uint32_t i)
    {
        float d[V];
        of.look(i);
        for (int k = 0; k < V; k++)
            d[k] = by[k] * (of.g[k] - mean_g[k] - of.xhat[k] * mean_dot[k]);
        store<V>(d, dx + i);
        if (dshortcut)
            store<V>(of.g, dshortcut + i);
    }
};

void cuda_norm_back_measure(const struct cuda_norm *given, const void *x, const void *y,
                            const void *dy, float *dw, float *dbias, cudaStream_t stream)
{
    struct norm p = norm_of(given);
    if (p.s.count > 0)
        FOR_PACK(p.map.type, channels_at_once(p.map) > 1,
                 SUM(norm_back_parts, p.s, p.room, nullptr, nullptr, stream,
                     {(const T *)x, (const T *)y, (const T *)dy, p}));
    LAUNCH(norm_back_whole, channels_ends(p.s), THREADS, stream, p, dw, dbias);
}

void cuda_norm_back(const struct cuda_norm *given, const void *x, const void *y,
                    const void *dy, void *dx, void *dshortcut, cudaStream_t stream)
{
    struct norm p = norm_of(given);
    if (p.shared)
        LAUNCH(norm_back_shared, blocks_for(p.s.C), THREADS, stream, p);
    if (p.s.count == 0)
        return;
    FOR_PACK(p.map.type, channels_at_once(p.map) > 1,
             WALK(norm_back_apply, p.walk, stream,
                  {(const T *)x, (const T *)y, (const T *)dy, p}, (T *)dx,
                  (T *)dshortcut));
}
