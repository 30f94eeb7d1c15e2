/* worker/cuda/pointwise.cu - see kernels.h: bias, ReLU, pooling, dropout and means of
 * images, forward and backward; norm.cu has the normalisation */
#include "worker/cuda/device.h"

#include "worker/cuda/channels.h"
#include "worker/kernels/rng.h"

/* The shape of z, and of y, which has half its height and width if pooled. */
struct shape {
    struct layout z, y;
    uint32_t n; /* elements of y */
};

static struct shape shape_of(struct cuda_map m, bool y_last, bool pooled)
{
    int H = pooled ? m.H / 2 : m.H, W = pooled ? m.W / 2 : m.W;
    return (struct shape){lie_of(m.C, m.H, m.W, m.last), lie_of(m.C, H, W, y_last),
                          (uint32_t)m.n * (uint32_t)m.C * (uint32_t)H * (uint32_t)W};
}

/* The map of y. */
static struct cuda_map out_of(struct cuda_map m, bool y_last, bool pooled)
{
    return (struct cuda_map){
        m.type, y_last, m.n, m.C, pooled ? m.H / 2 : m.H, pooled ? m.W / 2 : m.W};
}

static bool alike(struct cuda_map m, bool y_last)
{
    return m.last == y_last || m.H * m.W == 1 || m.C == 1;
}

/* The window in z of an element of y: its corner, and the steps to the other three. */
struct window {
    uint32_t at, down, right;
};

static __device__ inline struct window window_of(struct place p, const struct layout &z)
{
    p.h *= 2;
    p.w *= 2;
    uint32_t right = z.last ? z.C.by : 1;
    return {place_of(p, z), z.W.by * right, right};
}

/* ---- bias, ReLU, pooling ---- */

static __device__ inline float relu_of(float v)
{
    return v < 0 ? 0 : v; /* NaN stays NaN */
}

template <class T, int V> struct biased {
    const T *z;
    const float *bias;
    T *y;
    float b[V];
    __device__ void begin(uint32_t c, uint32_t step)
    {
        for (uint32_t k = 0; k < V; k++)
            b[k] = bias[c + k * step];
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

template <class T, int V>
static __global__ void bias_relu(const T *z, const float *bias, struct channels s, T *y)
{
    struct biased<T, V> f = {z, bias, y};
    channels_walk<V>(s, &f);
}

template <class T>
static __global__ void bias_relu_turned(const T *z, const float *bias, struct shape s,
                                        T *y)
{
    for (EACH_OF(i, s.n)) {
        struct place p = place_at(i, s.y);
        put(&y[i], relu_of(get(z[place_of(p, s.z)]) + bias[p.c]));
    }
}

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
static __global__ void pool(const T *z, const float *bias, struct shape s, T *y,
                            uint8_t *arg)
{
    for (EACH_OF(i, s.n)) {
        struct place p = place_at(i, s.y);
        float best;
        arg[i] = largest(z, window_of(p, s.z), bias[p.c], &best);
        put(&y[i], best);
    }
}

/* Transposition from channels last to channels first, or back: a block takes a square
 * of channels and positions of one image and transposes it in shared memory, so that
 * neighbouring threads access neighbouring memory on both sides. */
enum { SIDE = 32 };
struct tile {
    uint32_t b, c, place; /* the first */
};

static int tiles_of(const struct shape &s, int images)
{
    uint32_t places = s.y.H.by * s.y.W.by;
    return images * (int)((s.y.C.by + SIDE - 1) / SIDE) *
           (int)((places + SIDE - 1) / SIDE);
}

static __device__ inline struct tile tile_of(const struct shape &s)
{
    uint32_t places = (s.y.H.by * s.y.W.by + SIDE - 1) / SIDE;
    uint32_t channels = (s.y.C.by + SIDE - 1) / SIDE, i = blockIdx.x;
    return {i / places / channels, i / places % channels * SIDE, i % places * SIDE};
}

/* Are channel and position inside the image? */
static __device__ inline bool inside(const struct shape &s, uint32_t c, uint32_t place)
{
    return c < s.y.C.by && place < s.y.H.by * s.y.W.by;
}

static __device__ inline struct place place_in(const struct shape &s, struct tile t,
                                               uint32_t c, uint32_t place)
{
    uint32_t h = split(&place, s.y.W);
    return {t.b, c, h, place};
}

template <class T>
static __global__ void pool_turned(const T *z, const float *bias, struct shape s, T *y,
                                   uint8_t *arg)
{
    __shared__ float values[SIDE][SIDE + 1];
    __shared__ uint8_t places[SIDE][SIDE + 4];
    struct tile t = tile_of(s);
    uint32_t x = threadIdx.x % SIDE, from = threadIdx.x / SIDE;
    for (uint32_t j = from; j < SIDE; j += THREADS / SIDE) {
        uint32_t c = t.c + x, place = t.place + j;
        if (inside(s, c, place))
            places[j][x] = largest(z, window_of(place_in(s, t, c, place), s.z), bias[c],
                                   &values[j][x]);
    }
    __syncthreads();
    for (uint32_t j = from; j < SIDE; j += THREADS / SIDE) {
        uint32_t c = t.c + j, place = t.place + x;
        if (!inside(s, c, place))
            continue;
        uint32_t i = place_of(place_in(s, t, c, place), s.y);
        put(&y[i], values[x][j]);
        arg[i] = places[x][j];
    }
}

void cuda_bias_relu(const void *z, const float *bias, struct cuda_map m, bool y_last,
                    void *y, uint8_t *arg, cudaStream_t stream)
{
    struct shape s = shape_of(m, y_last, arg != NULL);
    bool wide = channels_wide(m), turned = !alike(m, y_last);
    if (arg && turned && m.last)
        FOR_TYPE(m.type, LAUNCH(pool_turned<T>, tiles_of(s, m.n), THREADS, stream,
                                (const T *)z, bias, s, (T *)y, arg));
    else if (arg)
        FOR_TYPE(m.type, LAUNCH(pool<T>, blocks_for(s.n), THREADS, stream, (const T *)z,
                                bias, s, (T *)y, arg));
    else if (turned)
        FOR_TYPE(m.type, LAUNCH(bias_relu_turned<T>, blocks_for(s.n), THREADS, stream,
                                (const T *)z, bias, s, (T *)y));
    else
        FOR_PACK(m.type, wide, {
            struct channels walk = channels_of(m, V, MOST_WALKERS, 4);
            LAUNCH((bias_relu<T, V>), channels_blocks(walk), THREADS, stream,
                   (const T *)z, bias, walk, (T *)y);
        });
}

/* ---- backward, with the gradient of the bias ---- */

/* The gradient before the ReLU; dz NULL: only summed. */
template <class T, int V> struct masked {
    const T *y, *dy;
    float scale;
    T *dz;
    float *out, sums[V][SUMS];
    __device__ void begin(uint32_t c, uint32_t step) {}
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
    __device__ void done(uint32_t c, uint32_t k, float sum)
    {
        if (k == 0)
            out[c] = sum;
    }
};

template <class T, int V>
static __global__ void masked_sum(struct masked<T, V> f, struct channels s, float *room)
{
    channels_sum<V>(s, &f, room);
}

/* The gradient goes to the position of the maximum; the other three get zero. */
template <class T> struct unpooled {
    const T *y, *dy;
    const uint8_t *arg;
    float scale;
    T *dz;
    struct shape s;
    float *out, sums[1][SUMS];
    __device__ void begin(uint32_t c, uint32_t step) {}
    __device__ void at(uint32_t i)
    {
        struct window w = window_of(place_at(i, s.y), s.z);
        float g = get(y[i]) > 0 ? get(dy[i]) * scale : 0;
        bool pairs = w.right == 1 && s.z.W.by % 2 == 0;
        uint32_t corner = arg[i];
        sums[0][0] += g;
        for (uint32_t q = 0; q < 4; q += 2) {
            float two[2] = {corner == q ? g : 0, corner == q + 1 ? g : 0};
            T *to = dz + w.at + q / 2 * w.down;
            if (pairs) {
                store<2>(two, to);
            } else {
                put(to, two[0]);
                put(to + w.right, two[1]);
            }
        }
    }
    __device__ void done(uint32_t c, uint32_t k, float sum)
    {
        if (k == 0)
            out[c] = sum;
    }
};

template <class T>
static __global__ void unpool_sum(struct unpooled<T> f, struct channels s, float *room)
{
    channels_sum<1>(s, &f, room);
}

template <class T>
static __global__ void unpool_turned(const T *y, const T *dy, const uint8_t *arg,
                                     float scale, struct shape s, T *dz)
{
    __shared__ float values[SIDE][SIDE + 1];
    __shared__ uint8_t places[SIDE][SIDE + 4];
    struct tile t = tile_of(s);
    uint32_t x = threadIdx.x % SIDE, from = threadIdx.x / SIDE;
    for (uint32_t j = from; j < SIDE; j += THREADS / SIDE) {
        uint32_t c = t.c + j, place = t.place + x;
        if (!inside(s, c, place))
            continue;
        uint32_t i = place_of(place_in(s, t, c, place), s.y);
        values[x][j] = get(y[i]) > 0 ? get(dy[i]) * scale : 0;
        places[x][j] = arg[i];
    }
    __syncthreads();
    for (uint32_t j = from; j < SIDE; j += THREADS / SIDE) {
        uint32_t c = t.c + x, place = t.place + j;
        if (!inside(s, c, place))
            continue;
        struct window w = window_of(place_in(s, t, c, place), s.z);
        for (uint32_t q = 0; q < 4; q++)
            put(&dz[w.at + q / 2 * w.down + q % 2 * w.right],
                places[j][x] == q ? values[j][x] : 0);
    }
}

template <class T>
static __global__ void unrelu_turned(const T *y, const T *dy, float scale, struct shape s,
                                     T *dz)
{
    for (EACH_OF(i, s.n)) {
        uint32_t to = place_of(place_at(i, s.y), s.z);
        put(&dz[to], get(y[i]) > 0 ? get(dy[i]) * scale : 0);
    }
}

static __global__ void channel_whole(struct channels s, const float *room, float *sums)
{
    uint32_t c;
    double whole[SUMS];
    if (channels_whole(s, room, &c, whole))
        sums[c] = (float)whole[0];
}

static void put_whole(const struct channels &s, const float *room, float *sums,
                      cudaStream_t stream)
{
    if (s.parts > 1)
        LAUNCH(channel_whole, channels_ends(s), THREADS, stream, s, room, sums);
}

static void put_masked(const void *y, const void *dy, float scale, struct cuda_map m,
                       void *dz, float *room, float *sums, cudaStream_t stream)
{
    bool wide = channels_wide(m);
    uint32_t at_once = !wide ? 1 : m.type == CUDA_F32 ? 4 : 8;
    struct channels s = channels_to_sum(m, at_once);
    FOR_PACK(m.type, wide, {
        struct masked<T, V> f = {(const T *)y, (const T *)dy, scale, (T *)dz, sums};
        LAUNCH((masked_sum<T, V>), channels_blocks(s), THREADS, stream, f, s, room);
    });
    put_whole(s, room, sums, stream);
}

void cuda_mask_sum(const void *y, void *dy, float scale, struct cuda_map m, float *room,
                   float *sums, cudaStream_t stream)
{
    put_masked(y, dy, scale, m, y ? dy : NULL, room, sums, stream);
}

/* Zeroes all of dz if no window covers its last row or column. */
static void put_rest(struct cuda_map m, void *dz, cudaStream_t stream)
{
    if (m.H % 2 || m.W % 2)
        cudaMemsetAsync(dz, 0, elements(m) * (size_t)(m.type == CUDA_F32 ? 4 : 2),
                        stream);
}

void cuda_bias_relu_back(const void *y, const void *dy, const uint8_t *arg, float scale,
                         struct cuda_map m, bool y_last, void *dz, float *room,
                         float *sums, cudaStream_t stream)
{
    struct cuda_map out = out_of(m, y_last, arg != NULL);
    struct shape shape = shape_of(m, y_last, arg != NULL);
    bool turned = !alike(m, y_last);
    if (arg)
        put_rest(m, dz, stream);
    if (arg && !(turned && m.last)) {
        struct channels s = channels_to_sum(out, 1);
        FOR_TYPE(m.type, {
            struct unpooled<T> f = {(const T *)y, (const T *)dy, arg,  scale,
                                    (T *)dz,      shape,         sums};
            LAUNCH(unpool_sum<T>, channels_blocks(s), THREADS, stream, f, s, room);
        });
        put_whole(s, room, sums, stream);
        return;
    }
    if (arg)
        FOR_TYPE(m.type, LAUNCH(unpool_turned<T>, tiles_of(shape, m.n), THREADS, stream,
                                (const T *)y, (const T *)dy, arg, scale, shape, (T *)dz));
    else if (turned)
        FOR_TYPE(m.type, LAUNCH(unrelu_turned<T>, blocks_for(shape.n), THREADS, stream,
                                (const T *)y, (const T *)dy, scale, shape, (T *)dz));
    put_masked(y, dy, scale, out, turned ? NULL : dz, room, sums, stream);
}

/* ---- dropout ---- */

template <class T, int V>
static __global__ void dropout(T *y, int64_t n, uint32_t below, float scale,
                               const struct cuda_step *s, int batch, int layer,
                               int layers)
{
    uint64_t seed = s->seed + ((uint64_t)batch << 40), word = 0;
    uint64_t key = rng_key(seed, s->taken * (uint64_t)layers + (uint64_t)layer);
    for (EACH(q, n / V)) {
        float v[V];
        int64_t i = q * V;
        load<V>(y + i, v);
        for (int k = 0; k < V; k++) {
            if (k % 4 == 0) /* a word serves four elements */
                word = rng_word(key, (uint64_t)(i + k) / 4);
            v[k] = (word >> (i + k) % 4 * 16 & 0xffff) < below ? 0 : v[k] * scale;
        }
        store<V>(v, y + i);
    }
}

void cuda_dropout(void *y, int64_t n, enum cuda_type type, float p,
                  const struct cuda_step *s, int batch, int layer, int layers,
                  cudaStream_t stream)
{
    FOR_PACK(type, n % 8 == 0,
             LAUNCH((dropout<T, V>), blocks_for(n / V), THREADS, stream, (T *)y, n,
                    rng_drop_below(p), rng_keep_scale(p), s, batch, layer, layers));
}

/* ---- means of images ---- */

template <class T>
static __global__ void mean(const T *x, uint32_t n, struct layout l, T *y)
{
    uint32_t pixels = l.H.by * l.W.by, step = l.last ? l.C.by : 1;
    for (EACH_OF(i, n)) {
        uint32_t c = i, b = split(&c, l.C);
        const T *from = x + place_of({b, c, 0, 0}, l);
        float sum = 0;
        for (uint32_t j = 0; j < pixels; j++)
            sum += get(from[j * step]);
        put(&y[i], sum / (float)pixels);
    }
}

void cuda_mean(const void *x, struct cuda_map m, void *y, cudaStream_t stream)
{
    uint32_t n = (uint32_t)m.n * (uint32_t)m.C;
    FOR_TYPE(m.type, LAUNCH(mean<T>, blocks_for(n), THREADS, stream, (const T *)x, n,
                            lie_of(m.C, m.H, m.W, m.last), (T *)y));
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
    FOR_TYPE(m.type,
             LAUNCH(mean_back<T>, blocks_for(elements(m)), THREADS, stream, (const T *)dy,
                    elements(m), lie_of(m.C, m.H, m.W, m.last), (T *)dx));
}
