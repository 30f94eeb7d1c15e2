/* worker/cuda/attention.cu - see kernels.h: causal attention, a tile of keys at a time
 *
 * Each thread has one query, with its weighted sum of values and the largest logit so
 * far; a larger logit rescales the sum (Milakov and Gimelshein, "Online normalizer
 * calculation for softmax", 2018; Dao et al., "FlashAttention", 2022). The threads of
 * a block share a tile of keys and values. Backward recomputes the weights from the
 * logarithm of their sum: one kernel loops over keys for each query, two loop over
 * queries for each key, so that each result is summed by one thread, in a fixed order.
 * All in float, without tensor cores.
 */
#include "worker/cuda/device.h"

#include "worker/kernels/rng.h"

enum { ROWS = 64, TILE = 32 };

/* A block's task: rows from `first` on of one head of a sample. */
struct work {
    int64_t sample; /* its first row */
    int head, first;
};

struct shape : cuda_attention {
    int parts;      /* blocks per sample and head */
    uint32_t below; /* of dropout: words below this are dropped, */
    float scale;    /* and the other weights multiplied */
    __device__ uint64_t key() const
    {
        return s ? dropout_key(s->seed, s->draw + (uint64_t)batch, layer, layers) : 0;
    }
    /* The factor of the weight of a key, for a query of head w. */
    __device__ float kept(uint64_t key, const struct work &w, int query, int at) const
    {
        if (!s)
            return 1;
        int64_t row = (w.sample / T * heads + w.head) * T + query;
        uint64_t word = rng_word(rng_word(key, (uint64_t)row), (uint64_t)at / 4);
        return (word >> at % 4 * 16 & 0xffff) < below ? 0 : scale;
    }
};

static __device__ inline struct work work_of(const struct shape &s, int heads)
{
    int of = blockIdx.x / s.parts;
    return {(int64_t)(of / heads) * s.T, of % heads, (int)blockIdx.x % s.parts * ROWS};
}

/* Queries, keys, values, outputs; or their gradients. */
enum part { QUERIES, KEYS, VALUES, OUTPUTS };

/* A token's numbers in an array of queries, keys and values. */
static __device__ inline int64_t step_of(const struct shape &s)
{
    return (int64_t)(s.heads + 2 * s.kv_heads) * s.D;
}

/* One head's row in such an array, or of outputs [rows, heads, D]. */
template <class T>
static __device__ inline T *row_at(T *all, const struct shape &s, const struct work &w,
                                   int row, enum part part)
{
    int64_t at = w.sample + row;
    if (part == OUTPUTS)
        return all + (at * s.heads + w.head) * s.D;
    int kv = s.heads + w.head / (s.heads / s.kv_heads);
    int head = part == QUERIES ? w.head : part == KEYS ? kv : kv + s.kv_heads;
    return all + at * step_of(s) + (int64_t)head * s.D;
}

/* Loads rows of up to D elements, padded with zeros. */
template <int D, class T>
static __device__ inline void take_own(const T *from, int d, float by, float *to)
{
#pragma unroll
    for (int i = 0; i < D; i++)
        to[i] = i < d ? get(from[i]) * by : 0;
}

template <int D, class T>
static __device__ inline void take_tile(const T *from, int64_t step, int rows, int d,
                                        float (*to)[D])
{
    for (int i = threadIdx.x; i < TILE * D; i += ROWS) {
        int r = i / D, c = i % D;
        to[r][c] = r < rows && c < d ? get(from[r * step + c]) : 0;
    }
}

template <int D> static __device__ inline float dot(const float *a, const float *b)
{
    float sum = 0;
#pragma unroll
    for (int i = 0; i < D; i++)
        sum += a[i] * b[i];
    return sum;
}

template <int D>
static __device__ inline void add_times(float *sum, float by, const float *v)
{
#pragma unroll
    for (int i = 0; i < D; i++)
        sum[i] += by * v[i];
}

template <class T, int D>
static __global__ void attention(const T *qkv, struct shape s, T *y, float *lse)
{
    alignas(16) __shared__ float k[TILE][D];
    alignas(16) __shared__ float v[TILE][D];
    struct work w = work_of(s, s.heads);
    int row = w.first + (int)threadIdx.x, end = min(w.first + ROWS, s.T);
    int64_t step = step_of(s);
    uint64_t key = s.key();
    float q[D], sum[D] = {}, most = -3e38f, all = 0;
    take_own<D>(row_at(qkv, s, w, min(row, s.T - 1), QUERIES), s.D, 1 / sqrtf((float)s.D),
                q);
    for (int from = 0; from < end; from += TILE) {
        int keys = min(TILE, s.T - from);
        take_tile<D>(row_at(qkv, s, w, from, KEYS), step, keys, s.D, k);
        take_tile<D>(row_at(qkv, s, w, from, VALUES), step, keys, s.D, v);
        __syncthreads();
        for (int j = 0; j < keys && from + j <= row; j++) {
            float logit = dot<D>(q, k[j]);
            if (logit > most) {
                float less = expf(most - logit);
                most = logit;
                all *= less;
#pragma unroll
                for (int i = 0; i < D; i++)
                    sum[i] *= less;
            }
            float weight = expf(logit - most);
            all += weight;
            add_times<D>(sum, weight * s.kept(key, w, row, from + j), v[j]);
        }
        __syncthreads();
    }
    if (row >= s.T)
        return;
    T *to = row_at(y, s, w, row, OUTPUTS);
    lse[(w.sample + row) * s.heads + w.head] = most + logf(all);
#pragma unroll
    for (int i = 0; i < D; i++)
        if (i < s.D)
            put(to + i, sum[i] / all);
}

/* The sum of dy times y for each row of a head. */
template <class T>
static __global__ void dots(const T *y, const T *dy, int64_t rows, int D, float *to)
{
    for (EACH(row, rows)) {
        float sum = 0;
        for (int i = 0; i < D; i++)
            sum += get(y[row * D + i]) * get(dy[row * D + i]);
        to[row] = sum;
    }
}

template <int D> struct loop_rows {
    alignas(16) float a[TILE][D]; /* keys, or queries */
    alignas(16) float b[TILE][D]; /* values, or dy */
    float lse[TILE], dots[TILE];  /* of queries */
};

template <class T, int D, enum part OF>
static __device__ void take_loop_rows(const T *qkv, const T *dy, const float *lse,
                                      const float *dots, struct shape s, struct work w,
                                      int from, int rows, struct loop_rows<D> *to)
{
    int64_t at = (w.sample + from + (int)threadIdx.x) * s.heads + w.head;
    if (OF == QUERIES) {
        take_tile<D>(row_at(qkv, s, w, from, KEYS), step_of(s), rows, s.D, to->a);
        take_tile<D>(row_at(qkv, s, w, from, VALUES), step_of(s), rows, s.D, to->b);
        return;
    }
    take_tile<D>(row_at(qkv, s, w, from, QUERIES), step_of(s), rows, s.D, to->a);
    take_tile<D>(row_at(dy, s, w, from, OUTPUTS), (int64_t)s.heads * s.D, rows, s.D,
                 to->b);
    if ((int)threadIdx.x < rows) {
        to->lse[threadIdx.x] = lse[at];
        to->dots[threadIdx.x] = dots[at];
    }
}

/* Gradients of queries, by a loop over the keys up to them; or of keys or values, by a
 * loop over the queries from them on, of each head that shares them. */
template <class T, int D, enum part OF>
static __global__ void attention_back(const T *qkv, const T *dy, const float *lse,
                                      const float *dots, struct shape s, T *dqkv)
{
    const bool queries = OF == QUERIES;
    const int group = queries ? 1 : s.heads / s.kv_heads;
    __shared__ struct loop_rows<D> tile;
    struct work w = work_of(s, s.heads / group);
    int row = w.first + (int)threadIdx.x, end = min(w.first + ROWS, s.T);
    int mine = min(row, s.T - 1);
    uint64_t bits = s.key();
    float scale = 1 / sqrtf((float)s.D);
    float own[D], other[D], sum[D] = {};
    w.head *= group;
    take_own<D>(row_at(qkv, s, w, mine, queries ? QUERIES : KEYS), s.D, scale, own);
    if (queries)
        take_own<D>(row_at(dy, s, w, mine, OUTPUTS), s.D, 1, other);
    else if (OF == KEYS)
        take_own<D>(row_at(qkv, s, w, mine, VALUES), s.D, 1, other);
    for (int g = 0; g < group; g++, w.head++) {
        int64_t at = w.sample * s.heads + w.head;
        for (int from = queries ? 0 : w.first; from < (queries ? end : s.T);
             from += TILE) {
            int rows = min(TILE, s.T - from);
            take_loop_rows<T, D, OF>(qkv, dy, lse, dots, s, w, from, rows, &tile);
            __syncthreads();
            for (int j = 0; j < rows && row < s.T; j++) {
                int query = queries ? row : from + j, key = queries ? from + j : row;
                if (key > query)
                    continue;
                float shift = queries ? lse[at + (int64_t)row * s.heads] : tile.lse[j];
                float mean = queries ? dots[at + (int64_t)row * s.heads] : tile.dots[j];
                float weight = expf(dot<D>(own, tile.a[j]) - shift);
                float by = s.kept(bits, w, query, key);
                if (OF == VALUES)
                    add_times<D>(sum, weight * by, tile.b[j]);
                else
                    add_times<D>(sum,
                                 weight * (dot<D>(other, tile.b[j]) * by - mean) * scale,
                                 tile.a[j]);
            }
            __syncthreads();
        }
    }
    if (row >= s.T)
        return;
    w.head -= group;
    T *to = row_at(dqkv, s, w, row, OF);
#pragma unroll
    for (int i = 0; i < D; i++)
        if (i < s.D)
            put(to + i, sum[i]);
}

/* Runs a statement with T as the type and D as the smallest supported size that holds
 * a head. */
#define FOR_HEAD(a, ...)                      \
    FOR_TYPE((a).type,                        \
             if ((a).D <= 32) {               \
                 enum { D = 32 };             \
                 __VA_ARGS__;                 \
             } else if ((a).D <= 64) {        \
                 enum { D = 64 };             \
                 __VA_ARGS__;                 \
             } else {                         \
                 enum { D = CUDA_HEAD_MOST }; \
                 __VA_ARGS__;                 \
             })

static struct shape shape_of(struct cuda_attention a)
{
    struct shape s;
    static_cast<struct cuda_attention &>(s) = a;
    s.parts = (a.T + ROWS - 1) / ROWS;
    s.below = rng_drop_below(a.dropout);
    s.scale = rng_keep_scale(a.dropout);
    return s;
}

void cuda_attention(struct cuda_attention a, const void *qkv, void *y, float *lse,
                    cudaStream_t stream)
{
    struct shape s = shape_of(a);
    int blocks = a.n * a.heads * s.parts;
    FOR_HEAD(a, LAUNCH((attention<T, D>), blocks, ROWS, stream, (const T *)qkv, s, (T *)y,
                       lse));
}

void cuda_attention_back(struct cuda_attention a, const void *qkv, const void *y,
                         const float *lse, const void *dy, void *dqkv, float *room,
                         cudaStream_t stream)
{
    struct shape s = shape_of(a);
    int blocks = a.n * a.heads * s.parts, shared = a.n * a.kv_heads * s.parts;
    int64_t rows = (int64_t)a.n * a.T * a.heads;
    const float *means = room;
    FOR_TYPE(a.type, LAUNCH(dots<T>, blocks_for(rows), THREADS, stream, (const T *)y,
                            (const T *)dy, rows, a.D, room));
    FOR_HEAD(a, {
        LAUNCH((attention_back<T, D, QUERIES>), blocks, ROWS, stream, (const T *)qkv,
               (const T *)dy, lse, means, s, (T *)dqkv);
        LAUNCH((attention_back<T, D, KEYS>), shared, ROWS, stream, (const T *)qkv,
               (const T *)dy, lse, means, s, (T *)dqkv);
        LAUNCH((attention_back<T, D, VALUES>), shared, ROWS, stream, (const T *)qkv,
               (const T *)dy, lse, means, s, (T *)dqkv);
    });
}
