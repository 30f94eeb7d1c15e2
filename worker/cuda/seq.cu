/* worker/cuda/seq.cu - see kernels.h: embeddings, norms of rows, GELU and SiLU, rotary
 * positions, forward and backward
 *
 * In a norm a warp processes a row; its sums over rows are channels.h's. Each element
 * of the embeddings' gradients is summed by one thread, in the order of rows.
 */
#include "worker/cuda/device.h"

#include "worker/cuda/channels.h"

enum { LANES = 32, ROWS = THREADS / LANES };

/* ---- embeddings of tokens and positions ---- */

struct rows {
    uint32_t n, context, C; /* n: of all samples */
};

static struct rows rows_of(struct cuda_map m)
{
    return {(uint32_t)m.n * (uint32_t)m.H, (uint32_t)m.H, (uint32_t)m.C};
}

static __device__ inline uint32_t token_of(const uint32_t *tokens, uint32_t row,
                                           uint32_t context)
{
    return tokens[row / context * (context + 1) + row % context];
}

template <class T>
static __global__ void embed(const uint32_t *tokens, const float *of, const float *at,
                             struct rows r, T *y)
{
    for (uint32_t row = blockIdx.x; row < r.n; row += gridDim.x) {
        size_t token = token_of(tokens, row, r.context), place = row % r.context;
        for (uint32_t c = threadIdx.x; c < r.C; c += THREADS)
            put(&y[(size_t)row * r.C + c],
                of[token * r.C + c] + (at ? at[place * r.C + c] : 0));
    }
}

void cuda_embed(const uint32_t *tokens, const float *of, const float *at,
                struct cuda_map map, void *y, cudaStream_t stream)
{
    struct rows r = rows_of(map);
    FOR_TYPE(map.type, LAUNCH(embed<T>, blocks_of(r.n), THREADS, stream, tokens, of, at,
                              r, (T *)y));
}

/* The first row of each token sums the gradients of all rows with that token. */
template <class T>
static __global__ void embed_back(const uint32_t *tokens, const T *dy, struct rows r,
                                  float *dof)
{
    __shared__ bool same[THREADS];
    for (uint32_t row = blockIdx.x; row < r.n; row += gridDim.x) {
        uint32_t token = token_of(tokens, row, r.context);
        bool mine = false;
        for (uint32_t k = threadIdx.x; k < row && !mine; k += THREADS)
            mine = token_of(tokens, k, r.context) == token;
        if (__syncthreads_or(mine))
            continue;
        for (uint32_t from = row; from < r.n; from += THREADS) {
            uint32_t k = from + threadIdx.x;
            same[threadIdx.x] = k < r.n && token_of(tokens, k, r.context) == token;
            if (!__syncthreads_or(same[threadIdx.x]))
                continue;
            for (uint32_t c = threadIdx.x; c < r.C; c += THREADS) {
                float sum = dof[(size_t)token * r.C + c];
                for (uint32_t i = 0; i < THREADS; i++)
                    sum += same[i] ? get(dy[(size_t)(from + i) * r.C + c]) : 0;
                dof[(size_t)token * r.C + c] = sum;
            }
            __syncthreads();
        }
    }
}

template <class T>
static __global__ void places_back(const T *dy, struct rows r, float *dat)
{
    uint32_t each = r.context * r.C;
    for (EACH_OF(i, each)) {
        float sum = 0;
        for (size_t at = i; at < (size_t)r.n * r.C; at += each)
            sum += get(dy[at]);
        dat[i] = sum;
    }
}

void cuda_embed_back(const uint32_t *tokens, const void *dy, struct cuda_map map,
                     float *dof, float *dat, cudaStream_t stream)
{
    struct rows r = rows_of(map);
    FOR_TYPE(map.type, {
        LAUNCH(embed_back<T>, blocks_of(r.n), THREADS, stream, tokens, (const T *)dy, r,
               dof);
        if (dat)
            LAUNCH(places_back<T>, blocks_for((int64_t)r.context * r.C), THREADS, stream,
                   (const T *)dy, r, dat);
    });
}

/* ---- layer norm, RMS norm ---- */

/* The sum over a row's threads, returned to all of them. */
static __device__ inline float row_sum(float x, float *room)
{
    const float *of = room + threadIdx.x / LANES * LANES;
    float sum = 0;
    room[threadIdx.x] = x;
    __syncthreads();
    for (int i = 0; i < LANES; i++)
        sum += of[i];
    __syncthreads();
    return sum;
}

template <class T, int V>
static __global__ void row_norm(const T *x, const float *w, const float *bias, bool rms,
                                float eps, struct rows r, T *y, float *kept)
{
    __shared__ float room[THREADS];
    uint32_t first = threadIdx.x % LANES * V, C = r.C;
    for (uint32_t at = blockIdx.x * ROWS; at < r.n; at += gridDim.x * ROWS) {
        uint32_t row = at + threadIdx.x / LANES, end = row < r.n ? C : 0;
        const T *from = x + (size_t)row * C;
        float v[V], sum = 0, squares = 0;
        for (uint32_t c = first; c < end && !rms; c += LANES * V) {
            load<V>(from + c, v);
            for (int k = 0; k < V; k++)
                sum += v[k];
        }
        float mean = row_sum(sum, room) / (float)C;
        for (uint32_t c = first; c < end; c += LANES * V) {
            load<V>(from + c, v);
            for (int k = 0; k < V; k++)
                squares += (v[k] - mean) * (v[k] - mean);
        }
        float scale = 1 / sqrtf(row_sum(squares, room) / (float)C + eps);
        for (uint32_t c = first; c < end; c += LANES * V) {
            load<V>(from + c, v);
            for (int k = 0; k < V; k++)
                v[k] = (v[k] - mean) * scale * w[c + k] + (bias ? bias[c + k] : 0);
            store<V>(v, y + (size_t)row * C + c);
        }
        if (first == 0 && end > 0) {
            kept[2 * (size_t)row] = mean;
            kept[2 * (size_t)row + 1] = scale;
        }
    }
}

static int row_blocks(const struct rows &r)
{
    return blocks_of((r.n + ROWS - 1) / ROWS);
}

void cuda_row_norm(const struct cuda_row_norm *p, const void *x, void *y,
                   cudaStream_t stream)
{
    struct rows r = rows_of(p->map);
    FOR_PACK(p->map.type, channels_at_once(p->map) > 1,
             LAUNCH((row_norm<T, V>), row_blocks(r), THREADS, stream, (const T *)x, p->w,
                    p->bias, p->rms, p->eps, r, (T *)y, p->kept));
}

template <class T, int V>
static __global__ void row_norm_back(const T *x, const T *dy, const float *w,
                                     const float *kept, bool rms, struct rows r, T *dx,
                                     bool add)
{
    __shared__ float room[THREADS];
    uint32_t first = threadIdx.x % LANES * V, C = r.C;
    for (uint32_t at = blockIdx.x * ROWS; at < r.n; at += gridDim.x * ROWS) {
        uint32_t row = at + threadIdx.x / LANES, end = row < r.n ? C : 0;
        const T *from = x + (size_t)row * C, *grad = dy + (size_t)row * C;
        float mean = end ? kept[2 * (size_t)row] : 0;
        float scale = end ? kept[2 * (size_t)row + 1] : 0;
        float v[V], g[V], sum = 0, along = 0; /* of g = dy w, and of g times x - mean */
        for (uint32_t c = first; c < end; c += LANES * V) {
            load<V>(from + c, v);
            load<V>(grad + c, g);
            for (int k = 0; k < V; k++) {
                sum += g[k] * w[c + k];
                along += g[k] * w[c + k] * (v[k] - mean);
            }
        }
        float mean_g = row_sum(rms ? 0 : sum, room) / (float)C;
        float slope = row_sum(along, room) / (float)C * scale * scale;
        for (uint32_t c = first; c < end; c += LANES * V) {
            T *to = dx + (size_t)row * C + c;
            float before[V];
            load<V>(from + c, v);
            load<V>(grad + c, g);
            if (add)
                load<V>(to, before);
            for (int k = 0; k < V; k++)
                v[k] = (g[k] * w[c + k] - mean_g - (v[k] - mean) * slope) * scale +
                       (add ? before[k] : 0);
            store<V>(v, to);
        }
    }
}

/* The summands of the gradients of weight and bias. */
template <class T, int V> struct row_norm_sums {
    const T *x, *dy;
    const float *kept;
    struct divide C;
    float sums[V][SUMS];
    __device__ void begin(uint32_t c) {}
    __device__ void at(uint32_t i)
    {
        float v[V], g[V];
        size_t row = over(i, C);
        float mean = kept[2 * row], scale = kept[2 * row + 1];
        load<V>(x + i, v);
        load<V>(dy + i, g);
        for (int k = 0; k < V; k++) {
            sums[k][0] += g[k];
            sums[k][1] += g[k] * ((v[k] - mean) * scale);
        }
    }
};

void cuda_row_norm_back(const struct cuda_row_norm *p, const void *x, const void *dy,
                        float *dw, float *dbias, void *dx, bool add, cudaStream_t stream)
{
    struct rows r = rows_of(p->map);
    struct cuda_map map = p->map;
    struct channels s = channels_to_sum(map, channels_at_once(map));
    FOR_PACK(map.type, channels_at_once(map) > 1, {
        SUM(row_norm_sums, s, p->room, dbias, dw, stream, (const T *)x, (const T *)dy,
            p->kept, divide_by(r.C));
        LAUNCH((row_norm_back<T, V>), row_blocks(r), THREADS, stream, (const T *)x,
               (const T *)dy, p->w, p->kept, p->rms, r, (T *)dx, add);
    });
    put_channels_end(s, p->room, dbias, dw, stream);
}

/* ---- GELU and SiLU ---- */

static __device__ inline float share_of(float x, const struct activation &f)
{
    return 1 / (1 + expf(x * (x * x * -f.cubic - f.linear)));
}

/* y, or from its gradients those of x, and of z if `gated`: behind the C x of a row. */
template <class T, int V>
static __global__ void activate(const T *x, uint32_t n, struct divide C,
                                struct activation f, const T *dy, T *to)
{
    for (EACH_OF(q, n / V)) {
        float v[V], z[V], g[V], dz[V];
        uint32_t i = q * V, at = f.gated ? i + over(i, C) * C.by : i;
        load<V>(x + at, v);
        for (int k = 0; k < V; k++)
            z[k] = g[k] = 1;
        if (f.gated)
            load<V>(x + at + C.by, z);
        if (dy)
            load<V>(dy + i, g);
        for (int k = 0; k < V; k++) {
            float s = share_of(v[k], f), y = v[k] * s;
            float slope = v[k] * v[k] * (3 * f.cubic) + f.linear; /* of u */
            dz[k] = g[k] * y;
            v[k] = dy ? g[k] * z[k] * (s + y * (1 - s) * slope) : y * z[k];
        }
        store<V>(v, to + (dy ? at : i));
        if (f.gated && dy)
            store<V>(dz, to + at + C.by);
    }
}

void cuda_activation(struct cuda_map map, struct activation f, const void *x,
                     const void *dy, void *to, cudaStream_t stream)
{
    struct rows r = rows_of(map);
    uint32_t n = r.n * r.C;
    FOR_PACK(map.type, (f.gated ? r.C : n) % 8 == 0,
             LAUNCH((activate<T, V>), blocks_for(n / V), THREADS, stream, (const T *)x, n,
                    divide_by(r.C), f, (const T *)dy, (T *)to));
}

/* ---- rotary positions ---- */

struct heads {
    struct divide half, all, T; /* numbers in half a head, heads of a row, rows */
    uint32_t turned;            /* the first of these heads */
};

template <class T>
static __global__ void rotary(const T *x, uint32_t n, struct heads s, const float *turns,
                              bool back, T *y)
{
    for (EACH_OF(i, n)) {
        uint32_t d = i, head = split(&d, s.half), half = s.half.by;
        size_t at = (size_t)head * 2 * half + d;
        uint32_t row = split(&head, s.all), t = row;
        split(&t, s.T);
        float u = get(x[at]), v = get(x[at + half]), c = 1, b = 0;
        if (head < s.turned) {
            const float *turn = turns + t * 2 * half + d;
            c = turn[0];
            b = back ? -turn[half] : turn[half];
        }
        put(&y[at], u * c - v * b);
        put(&y[at + half], v * c + u * b);
    }
}

void cuda_rotary(struct cuda_attention a, const float *turns, const void *x, void *y,
                 bool back, cudaStream_t stream)
{
    uint32_t half = (uint32_t)a.D / 2, all = (uint32_t)(a.heads + 2 * a.kv_heads);
    uint32_t n = (uint32_t)a.n * (uint32_t)a.T * all * half;
    struct heads s = {divide_by(half), divide_by(all), divide_by((uint32_t)a.T),
                      (uint32_t)(a.heads + a.kv_heads)};
    FOR_TYPE(a.type, LAUNCH(rotary<T>, blocks_for(n), THREADS, stream, (const T *)x, n, s,
                            turns, back, (T *)y));
}
