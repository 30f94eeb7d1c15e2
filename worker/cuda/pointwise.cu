/* worker/cuda/pointwise.cu - see kernels.h: bias, ReLU, pooling, dropout and means of
 * images, forward and backward; norm.cu has the normalisation */
#include "worker/cuda/device.h"

#include "worker/cuda/channels.h"
#include "worker/kernels/rng.h"

/* The shape of y after pooling; n elements. */
static struct cuda_map pooled(struct cuda_map m)
{
    return (struct cuda_map){m.type, m.n, m.C, m.H / 2, m.W / 2};
}

/* The window in z[n,H,W,C] of element i of y: its corner, and the steps to the other
 * three. */
struct window {
    uint32_t at, down, right, channel;
};

struct windows {
    struct layout y;
    uint32_t H, W; /* of z */
};

static struct windows windows_of(struct cuda_map z)
{
    return (struct windows){layout_of(pooled(z)), (uint32_t)z.H, (uint32_t)z.W};
}

static __device__ inline struct window window_of(uint32_t i, const struct windows &s)
{
    struct place p = place_at(i, s.y);
    uint32_t C = s.y.C.by, row = p.b * s.H + 2 * p.h;
    return {(row * s.W + 2 * p.w) * C + p.c, s.W * C, C, p.c};
}

/* ---- bias, ReLU, pooling ---- */

static __device__ inline float relu_of(float v)
{
    return v < 0 ? 0 : v; /* NaN stays NaN */
}

template <class T, int V> struct bias_relu {
    const T *z;
    const float *bias;
    T *y;
    float b[V];
    __device__ void begin(uint32_t c)
    {
        for (uint32_t k = 0; k < V; k++)
            b[k] = bias[c + k];
    }
    __device__ void at(uint32_t i)
    {
        float v[V];
        load<V>(z + i, v);
        for (int k = 0; k < V; k++)
            v[k] = relu_of(v[k] + b[k]);
        store<V>(v, y + i);
    }
};

/* The first of equal maxima in row order; a NaN counts as the maximum. */
template <class T>
static __device__ inline uint8_t largest(const T *z, struct window w, float bias,
                                         float *best)
{
    uint8_t at = 0;
    for (uint8_t q = 0; q < 4; q++) {
        float v = relu_of(get(z[w.at + q / 2 * w.down + q % 2 * w.right]) + bias);
        if (q == 0 || v > *best || v != v) {
            *best = v;
            at = q;
        }
    }
    return at;
}

template <class T>
static __global__ void pool(const T *z, const float *bias, struct windows s, uint32_t n,
                            T *y, uint8_t *arg)
{
    for (EACH_OF(i, n)) {
        struct window w = window_of(i, s);
        float best;
        arg[i] = largest(z, w, bias[w.channel], &best);
        put(&y[i], best);
    }
}

void cuda_bias_relu(const void *z, const float *bias, struct cuda_map m, void *y,
                    uint8_t *arg, cudaStream_t stream)
{
    uint32_t n = elements(pooled(m));
    if (arg)
        FOR_TYPE(m.type, LAUNCH(pool<T>, blocks_for(n), THREADS, stream, (const T *)z,
                                bias, windows_of(m), n, (T *)y, arg));
    else
        FOR_PACK(m.type, channels_at_once(m) > 1, {
            struct channels s = channels_of(m, V, MOST_WALKERS, 4);
            WALK(bias_relu, s, stream, (const T *)z, bias, (T *)y);
        });
}

/* ---- backward, with the gradient of the bias ---- */

/* The gradient before the ReLU; dz NULL: only summed. */
template <class T, int V> struct masked_sum {
    const T *y, *dy;
    float scale;
    T *dz;
    float sums[V][SUMS];
    __device__ void begin(uint32_t c) {}
    __device__ void at(uint32_t i)
    {
        float g[V], passed[V];
        load<V>(dy + i, g);
        if (y)
            load<V>(y + i, passed);
        for (int k = 0; k < V; k++) {
            g[k] = !y ? g[k] : passed[k] > 0 ? g[k] * scale : 0;
            sums[k][0] += g[k];
        }
        if (dz)
            store<V>(g, dz + i);
    }
};

/* The gradient goes to the position of the maximum; the other three get zero. V is 1. */
template <class T, int V> struct unpool_sum {
    const T *y, *dy;
    const uint8_t *arg;
    float scale;
    T *dz;
    struct windows s;
    float sums[V][SUMS];
    __device__ void begin(uint32_t c) {}
    __device__ void at(uint32_t i)
    {
        struct window w = window_of(i, s);
        float g = get(y[i]) > 0 ? get(dy[i]) * scale : 0;
        sums[0][0] += g;
        for (uint32_t q = 0; q < 4; q++)
            put(&dz[w.at + q / 2 * w.down + q % 2 * w.right], arg[i] == q ? g : 0);
    }
};

/* Zeroes all of dz if no window covers its last row or column. */
static void put_rest(struct cuda_map m, void *dz, cudaStream_t stream)
{
    if (m.H % 2 || m.W % 2)
        CUDA(cudaMemsetAsync(dz, 0, elements(m) * (size_t)(m.type == CUDA_F32 ? 4 : 2),
                             stream));
}

void cuda_bias_relu_back(const void *y, const void *dy, const uint8_t *arg, float scale,
                         struct cuda_map m, void *dz, float *room, float *sums,
                         cudaStream_t stream)
{
    uint32_t at_once = arg ? 1 : channels_at_once(m);
    struct channels s = channels_to_sum(arg ? pooled(m) : m, at_once);
    if (arg) {
        put_rest(m, dz, stream);
        FOR_TYPE(m.type, {
            enum { V = 1 };
            SUM(unpool_sum, s, room, sums, nullptr, stream, (const T *)y, (const T *)dy,
                arg, scale, (T *)dz, windows_of(m));
        });
    } else {
        FOR_PACK(m.type, at_once > 1,
                 SUM(masked_sum, s, room, sums, nullptr, stream, (const T *)y,
                     (const T *)dy, scale, (T *)dz));
    }
    put_channels_end(s, room, sums, NULL, stream);
}

/* ---- dropout ---- */

/* The random bits are those of [n,C,H,W]. */
template <class T>
static __global__ void dropout(T *y, uint32_t n, struct divide C, struct divide pixels,
                               uint32_t below, float scale, const struct cuda_step *s,
                               int batch, int layer, int layers)
{
    uint64_t key = dropout_key(s->seed, s->draw + (uint64_t)batch, layer, layers);
    for (EACH_OF(i, n)) {
        uint32_t c = i, pixel = split(&c, C), image = split(&pixel, pixels);
        uint32_t at = (image * C.by + c) * pixels.by + pixel;
        uint64_t word = rng_word(key, at / 4); /* serves four elements */
        bool drops = (word >> at % 4 * 16 & 0xffff) < below;
        put(&y[i], drops ? 0 : get(y[i]) * scale);
    }
}

void cuda_dropout(void *y, struct cuda_map m, float p, const struct cuda_step *s,
                  int batch, int layer, int layers, cudaStream_t stream)
{
    uint32_t n = elements(m);
    FOR_TYPE(m.type,
             LAUNCH(dropout<T>, blocks_for(n), THREADS, stream, (T *)y, n,
                    divide_by((uint32_t)m.C), divide_by((uint32_t)(m.H * m.W)),
                    rng_drop_below(p), rng_keep_scale(p), s, batch, layer, layers));
}

/* ---- means of images ---- */

template <class T>
static __global__ void mean(const T *x, uint32_t n, struct layout l, T *y)
{
    uint32_t pixels = l.H.by * l.W.by;
    for (EACH_OF(i, n)) {
        uint32_t c = i, b = split(&c, l.C);
        const T *from = x + b * pixels * l.C.by + c;
        float sum = 0;
        for (uint32_t j = 0; j < pixels; j++)
            sum += get(from[j * l.C.by]);
        put(&y[i], sum / (float)pixels);
    }
}

void cuda_mean(const void *x, struct cuda_map m, void *y, cudaStream_t stream)
{
    uint32_t n = (uint32_t)m.n * (uint32_t)m.C;
    FOR_TYPE(m.type, LAUNCH(mean<T>, blocks_for(n), THREADS, stream, (const T *)x, n,
                            layout_of(m), (T *)y));
}

template <class T>
static __global__ void mean_back(const T *dy, uint32_t n, struct layout l, T *dx)
{
    for (EACH_OF(i, n)) {
        struct place p = place_at(i, l);
        put(&dx[i], get(dy[p.b * l.C.by + p.c]) / (float)(l.H.by * l.W.by));
    }
}

void cuda_mean_back(const void *dy, struct cuda_map m, void *dx, cudaStream_t stream)
{
    FOR_TYPE(m.type, LAUNCH(mean_back<T>, blocks_for(elements(m)), THREADS, stream,
                            (const T *)dy, elements(m), layout_of(m), (T *)dx));
}
