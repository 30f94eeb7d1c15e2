/* worker/cuda/between.cu - see kernels.h: bias, ReLU, pooling, dropout, means of images,
 * there and back; norm.cu has the normalisation */
#include "worker/cuda/device.h"

#include "worker/cuda/channels.h"
#include "worker/kernels/rng.h"

/* Of z; pooled, y is half as high and wide. */
struct shape {
    uint32_t n, C, H, W;
    bool last, y_last;
};

static struct shape shape_of(struct cuda_map m, bool y_last)
{
    return (struct shape){(uint32_t)m.n, (uint32_t)m.C, (uint32_t)m.H,
                          (uint32_t)m.W, m.last,        y_last};
}

/* ---- bias, ReLU, pooling ---- */

template <class T>
static __global__ void bias_relu(const T *z, const float *bias, struct shape s, T *y)
{
    for (EACH_OF(i, s.n * s.C * s.H * s.W)) {
        struct place p = place_at(i, s.C, s.H, s.W, s.y_last);
        float v = get(z[place_of(p, s.C, s.H, s.W, s.last)]) + bias[p.c];
        put(&y[i], v < 0 ? 0 : v); /* not-a-number stays */
    }
}

/* The first of equal maxima in row order; not-a-number counts as more than any number. */
template <class T>
static __global__ void bias_relu_pool(const T *z, const float *bias, struct shape s, T *y,
                                      uint8_t *arg)
{
    uint32_t OH = s.H / 2, OW = s.W / 2;
    uint32_t down = s.last ? s.W * s.C : s.W, right = s.last ? s.C : 1;
    for (EACH_OF(i, s.n * s.C * OH * OW)) {
        struct place p = place_at(i, s.C, OH, OW, s.y_last);
        float b = bias[p.c];
        p.h *= 2;
        p.w *= 2;
        const T *from = z + place_of(p, s.C, s.H, s.W, s.last);
        float best = 0;
        uint8_t at = 0;
        for (uint8_t q = 0; q < 4; q++) {
            float v = get(from[q / 2 * down + q % 2 * right]) + b;
            v = v < 0 ? 0 : v;
            if (q == 0 || v > best || v != v) {
                best = v;
                at = q;
            }
        }
        put(&y[i], best);
        arg[i] = at;
    }
}

void cuda_bias_relu(const void *z, const float *bias, struct cuda_map m, bool y_last,
                    void *y, uint8_t *arg, cudaStream_t stream)
{
    struct shape s = shape_of(m, y_last);
    if (arg)
        FOR_TYPE(m.type, LAUNCH(bias_relu_pool<T>, blocks_for(elements(m) / 4), THREADS,
                                stream, (const T *)z, bias, s, (T *)y, arg));
    else
        FOR_TYPE(m.type, LAUNCH(bias_relu<T>, blocks_for(elements(m)), THREADS, stream,
                                (const T *)z, bias, s, (T *)y));
}

/* A thread for each element of dz: it looks up whether its window's maximum was here. */
template <class T>
static __global__ void unpool(const T *y, const T *dy, const uint8_t *arg, float scale,
                              struct shape s, T *dz)
{
    uint32_t OH = s.H / 2, OW = s.W / 2;
    for (EACH_OF(i, s.n * s.C * s.H * s.W)) {
        struct place p = place_at(i, s.C, s.H, s.W, s.last);
        uint32_t corner = p.h % 2 * 2 + p.w % 2;
        p.h /= 2;
        p.w /= 2;
        uint32_t from = place_of(p, s.C, OH, OW, s.y_last);
        bool here = p.h < OH && p.w < OW && arg[from] == corner && get(y[from]) > 0;
        put(&dz[i], here ? get(dy[from]) * scale : 0);
    }
}

template <class T>
static __global__ void unrelu(const T *y, const T *dy, float scale, struct shape s, T *dz)
{
    for (EACH_OF(i, s.n * s.C * s.H * s.W)) {
        struct place p = place_at(i, s.C, s.H, s.W, s.last);
        uint32_t from = place_of(p, s.C, s.H, s.W, s.y_last);
        put(&dz[i], get(y[from]) > 0 ? get(dy[from]) * scale : 0);
    }
}

void cuda_bias_relu_back(const void *y, const void *dy, const uint8_t *arg, float scale,
                         struct cuda_map m, bool y_last, void *dz, cudaStream_t stream)
{
    struct shape s = shape_of(m, y_last);
    int blocks = blocks_for(elements(m));
    if (arg)
        FOR_TYPE(m.type, LAUNCH(unpool<T>, blocks, THREADS, stream, (const T *)y,
                                (const T *)dy, arg, scale, s, (T *)dz));
    else
        FOR_TYPE(m.type, LAUNCH(unrelu<T>, blocks, THREADS, stream, (const T *)y,
                                (const T *)dy, scale, s, (T *)dz));
}

template <class T> static __global__ void mask(const T *y, T *dy, float scale, int64_t n)
{
    for (EACH(i, n))
        put(&dy[i], get(y[i]) > 0 ? get(dy[i]) * scale : 0);
}

void cuda_mask(const void *y, void *dy, float scale, int64_t n, enum cuda_type type,
               cudaStream_t stream)
{
    FOR_TYPE(type, LAUNCH(mask<T>, blocks_for(n), THREADS, stream, (const T *)y, (T *)dy,
                          scale, n));
}

/* ---- the gradient of a bias ---- */

template <class T> struct themselves {
    const T *x;
    __device__ void add(uint32_t at, uint32_t c, float *sums) const
    {
        sums[0] += get(x[at]);
    }
};

template <class T>
static __global__ void channel_parts(const T *x, struct channels s, float *room)
{
    struct themselves<T> of = {
        x
    };
    channels_sum(s, of, room);
}

static __global__ void channel_whole(struct channels s, const float *room, float *sums)
{
    for (EACH_OF(c, s.C))
        sums[c] = (float)channels_whole(s, room, c, 0);
}

void cuda_sum_channels(const void *x, struct cuda_map m, float *room, float *sums,
                       cudaStream_t stream)
{
    struct channels s = channels_of(m);
    FOR_TYPE(m.type, LAUNCH(channel_parts<T>, s.groups * s.parts, THREADS, stream,
                            (const T *)x, s, room));
    LAUNCH(channel_whole, blocks_for(m.C), THREADS, stream, s, room, sums);
}

/* ---- dropout ---- */

template <class T>
static __global__ void dropout(T *y, int64_t n, uint32_t below, float scale,
                               const struct cuda_step *s, int batch, int layer,
                               int layers)
{
    uint64_t seed = s->seed + ((uint64_t)batch << 40);
    uint64_t key = rng_key(seed, s->taken * (uint64_t)layers + (uint64_t)layer);
    for (EACH(i, n)) {
        uint64_t word = rng_word(key, (uint64_t)i / 4);
        put(&y[i], (word >> i % 4 * 16 & 0xffff) < below ? 0 : get(y[i]) * scale);
    }
}

void cuda_dropout(void *y, int64_t n, enum cuda_type type, float p,
                  const struct cuda_step *s, int batch, int layer, int layers,
                  cudaStream_t stream)
{
    FOR_TYPE(type, LAUNCH(dropout<T>, blocks_for(n), THREADS, stream, (T *)y, n,
                          rng_drop_below(p), rng_keep_scale(p), s, batch, layer, layers));
}

/* ---- means of images ---- */

template <class T> static __global__ void mean(const T *x, struct shape s, T *y)
{
    uint32_t pixels = s.H * s.W, step = s.last ? s.C : 1;
    for (EACH_OF(i, s.n * s.C)) {
        struct place p = {i / s.C, i % s.C, 0, 0};
        const T *from = x + place_of(p, s.C, s.H, s.W, s.last);
        float sum = 0;
        for (uint32_t j = 0; j < pixels; j++)
            sum += get(from[j * step]);
        put(&y[i], sum / (float)pixels);
    }
}

void cuda_mean(const void *x, struct cuda_map m, void *y, cudaStream_t stream)
{
    FOR_TYPE(m.type, LAUNCH(mean<T>, blocks_for((int64_t)m.n * m.C), THREADS, stream,
                            (const T *)x, shape_of(m, m.last), (T *)y));
}

template <class T> static __global__ void mean_back(const T *dy, struct shape s, T *dx)
{
    for (EACH_OF(i, s.n * s.C * s.H * s.W)) {
        struct place p = place_at(i, s.C, s.H, s.W, s.last);
        put(&dx[i], get(dy[p.b * s.C + p.c]) / (float)(s.H * s.W));
    }
}

void cuda_mean_back(const void *dy, struct cuda_map m, void *dx, cudaStream_t stream)
{
    FOR_TYPE(m.type, LAUNCH(mean_back<T>, blocks_for(elements(m)), THREADS, stream,
                            (const T *)dy, shape_of(m, m.last), (T *)dx));
}
