/* worker/cuda/norm.cu - see kernels.h: batch normalisation
 *
 *     y = relu(w (x - mean) rstd + bias + shortcut)       rstd = 1 / sqrt(var + eps)
 * back, with xhat = (x - mean) rstd and g = dy where y > 0:
 *     dw = sum g xhat   dbias = sum g   dx = w rstd (g - mean of g - xhat mean of g xhat)
 *
 * Sums over a batch are taken about the channel's first element: a mean far from zero
 * costs no digits. saved: mean[C], rstd[C], and going back mean of g[C], of g xhat[C].
 *
 * Shared with other ranks, mean and variance are those of all numbers: shared has count *
 * mean, count * (var + mean^2) and the count, going back the sums of g and g xhat;
 * doubles, so that the difference costs floats nothing.
 */
#include "worker/cuda/channels.h"
#include "worker/cuda/device.h"

struct norm {
    struct channels s;
    bool relu;
    float eps, momentum;
    const float *w, *bias;
    float *running, *saved, *room;
    double *shared;
};

static struct norm norm_of(const struct cuda_norm *p)
{
    return (struct norm){
        channels_of(p->map), p->relu,  p->eps,  p->momentum, p->w, p->bias,
        p->running,          p->saved, p->room, p->shared};
}

static __device__ inline uint32_t channel_of(const struct channels &s, uint32_t i)
{
    return s.last ? i % s.C : i / s.inner % s.C;
}

/* Of channel c, the first. */
static __device__ inline uint32_t first_of(const struct channels &s, uint32_t c)
{
    return s.last ? c : c * s.inner;
}

/* ---- forward ---- */

template <class T> struct about_first {
    const T *x;
    struct channels s;
    __device__ void add(uint32_t at, uint32_t c, float *sums) const
    {
        float d = get(x[at]) - get(x[first_of(s, c)]);
        sums[0] += d;
        sums[1] += d * d;
    }
};

template <class T> static __global__ void norm_parts(const T *x, struct norm p)
{
    struct about_first<T> of = {
        x, p.s
    };
    channels_sum(p.s, of, p.room);
}

struct moments {
    double mean, var;
};

/* Of this batch, channel c. */
template <class T>
static __device__ inline struct moments moments_of(const T *x, const struct norm &p,
                                                   uint32_t c)
{
    double count = (double)p.s.count;
    double off = channels_whole(p.s, p.room, c, 0) / count;
    double square = channels_whole(p.s, p.room, c, 1) / count;
    double var = square - off * off;
    var = square != square ? square : var > 0 ? var : 0;
    return {(double)get(x[first_of(p.s, c)]) + off, var};
}

/* Of `count` numbers: what they are normalised by, and a step of the running ones towards
 * it. */
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
    if (unbiased - unbiased != 0) /* a bad number */
        return;
    p.running[c] = (float)((1 - step) * (double)p.running[c] + step * m.mean);
    p.running[C + c] = (float)((1 - step) * (double)p.running[C + c] + step * unbiased);
}

template <class T> static __global__ void norm_learn(const T *x, struct norm p)
{
    for (EACH_OF(c, p.s.C))
        settle(p, c, moments_of(x, p, c), (double)p.s.count);
}

template <class T> static __global__ void norm_measure(const T *x, struct norm p)
{
    uint32_t C = p.s.C;
    double count = (double)p.s.count;
    for (EACH_OF(c, C)) {
        struct moments m = {0, 0};
        if (p.s.count > 0)
            m = moments_of(x, p, c);
        p.shared[c] = count * m.mean;
        p.shared[C + c] = count * (m.var + m.mean * m.mean);
        if (c == 0)
            p.shared[2 * C] = count;
    }
}

static __global__ void norm_learn_shared(struct norm p)
{
    uint32_t C = p.s.C;
    double count = p.shared[2 * C];
    for (EACH_OF(c, C)) {
        double mean = p.shared[c] / count;
        double var = p.shared[C + c] / count - mean * mean;
        settle(p, c, {mean, var < 0 ? 0 : var}, count); /* not-a-number stays */
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

template <class T>
static __global__ void norm_apply(const T *x, const T *shortcut, struct norm p, T *y)
{
    uint32_t C = p.s.C;
    for (EACH_OF(i, p.s.count * C)) {
        uint32_t c = channel_of(p.s, i);
        float v = p.w[c] * ((get(x[i]) - p.saved[c]) * p.saved[C + c]) + p.bias[c];
        if (shortcut)
            v += get(shortcut[i]);
        put(&y[i], p.relu && v < 0 ? 0 : v); /* not-a-number stays */
    }
}

static void put_parts(const struct norm &p, const void *x, enum cuda_type type,
                      cudaStream_t stream)
{
    FOR_TYPE(type, LAUNCH(norm_parts<T>, p.s.groups * p.s.parts, THREADS, stream,
                          (const T *)x, p));
}

void cuda_norm_measure(const struct cuda_norm *given, const void *x, cudaStream_t stream)
{
    struct norm p = norm_of(given);
    if (p.s.count > 0)
        put_parts(p, x, given->map.type, stream);
    FOR_TYPE(given->map.type, LAUNCH(norm_measure<T>, blocks_for(p.s.C), THREADS, stream,
                                     (const T *)x, p));
}

void cuda_norm(const struct cuda_norm *given, const void *x, const void *shortcut,
               bool learn, void *y, cudaStream_t stream)
{
    struct norm p = norm_of(given);
    int blocks = blocks_for(p.s.C);
    if (!learn) {
        LAUNCH(norm_recall, blocks, THREADS, stream, p);
    } else if (p.shared) {
        LAUNCH(norm_learn_shared, blocks, THREADS, stream, p);
    } else {
        put_parts(p, x, given->map.type, stream);
        FOR_TYPE(given->map.type,
                 LAUNCH(norm_learn<T>, blocks, THREADS, stream, (const T *)x, p));
    }
    if (p.s.count == 0)
        return;
    FOR_TYPE(given->map.type,
             LAUNCH(norm_apply<T>, blocks_for(elements(given->map)), THREADS, stream,
                    (const T *)x, (const T *)shortcut, p, (T *)y));
}

/* ---- backward ---- */

template <class T> struct with_gradient {
    const T *x, *y, *dy;
    bool relu;
    const float *mean, *rstd;
    __device__ float g(uint32_t at) const
    {
        return relu && !(get(y[at]) > 0) ? 0 : get(dy[at]);
    }
    __device__ float xhat(uint32_t at, uint32_t c) const
    {
        return (get(x[at]) - mean[c]) * rstd[c];
    }
    __device__ void add(uint32_t at, uint32_t c, float *sums) const
    {
        float d = g(at);
        sums[0] += d;
        sums[1] += d * xhat(at, c);
    }
};

template <class T>
static __global__ void norm_back_parts(const T *x, const T *y, const T *dy, struct norm p)
{
    struct with_gradient<T> of = {
        x, y, dy, p.relu, p.saved, p.saved + p.s.C
    };
    channels_sum(p.s, of, p.room);
}

/* This rank's sums: what the gradients of w and bias are, shared or not. */
static __global__ void norm_back_whole(struct norm p, float *dw, float *dbias)
{
    uint32_t C = p.s.C;
    double count = (double)p.s.count;
    for (EACH_OF(c, C)) {
        double sum = p.s.count > 0 ? channels_whole(p.s, p.room, c, 0) : 0;
        double dot = p.s.count > 0 ? channels_whole(p.s, p.room, c, 1) : 0;
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

template <class T>
static __global__ void norm_back_apply(const T *x, const T *y, const T *dy, struct norm p,
                                       T *dx, T *dshortcut)
{
    uint32_t C = p.s.C;
    struct with_gradient<T> of = {
        x, y, dy, p.relu, p.saved, p.saved + C
    };
    for (EACH_OF(i, p.s.count * C)) {
        uint32_t c = channel_of(p.s, i);
        float g = of.g(i);
        put(&dx[i], p.w[c] * p.saved[C + c] *
                        (g - p.saved[2 * C + c] - of.xhat(i, c) * p.saved[3 * C + c]));
        if (dshortcut)
            put(&dshortcut[i], g);
    }
}

void cuda_norm_back_measure(const struct cuda_norm *given, const void *x, const void *y,
                            const void *dy, float *dw, float *dbias, cudaStream_t stream)
{
    struct norm p = norm_of(given);
    if (p.s.count > 0)
        FOR_TYPE(given->map.type,
                 LAUNCH(norm_back_parts<T>, p.s.groups * p.s.parts, THREADS, stream,
                        (const T *)x, (const T *)y, (const T *)dy, p));
    LAUNCH(norm_back_whole, blocks_for(p.s.C), THREADS, stream, p, dw, dbias);
}

void cuda_norm_back(const struct cuda_norm *given, const void *x, const void *y,
                    const void *dy, float *dw, float *dbias, void *dx, void *dshortcut,
                    cudaStream_t stream)
{
    struct norm p = norm_of(given);
    if (p.shared)
        LAUNCH(norm_back_shared, blocks_for(p.s.C), THREADS, stream, p);
    else
        cuda_norm_back_measure(given, x, y, dy, dw, dbias, stream);
    if (p.s.count == 0)
        return;
    FOR_TYPE(given->map.type, LAUNCH(norm_back_apply<T>, blocks_for(elements(given->map)),
                                     THREADS, stream, (const T *)x, (const T *)y,
                                     (const T *)dy, p, (T *)dx, (T *)dshortcut));
}
