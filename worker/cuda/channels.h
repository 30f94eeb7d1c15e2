/* worker/cuda/channels.h - loops over images, and sums for each channel; for .cu files
 * only
 *
 * A thread keeps its channels, so per-channel values are read once, and takes V
 * channels of one position at a time. Neighbouring threads read neighbouring memory. A
 * block has a group of channels and a part of their positions.
 *
 * The operation is an object, of which each thread has its own:
 *     begin(c)     its k-th element is of channel c + k
 *     at(i)        elements i to i + V - 1
 * For sums, it also has sums[V][SUMS]. The kernels channels_walk and channels_sum run any
 * of them; an error names the object (failure.cu). Threads add floats, then a block adds
 * its threads, then channels_whole() adds the parts, if there are several, with the
 * accuracy of doubles, always in the same order.
 */
#ifndef WORKER_CUDA_CHANNELS_H
#define WORKER_CUDA_CHANNELS_H

#include "worker/cuda/device.h"

enum { SUMS = 2, MOST_WALKERS = 2048, MOST_SUMMERS = 1024, WHOLE = 32 };

struct channels {
    uint32_t C, count;       /* positions of all images */
    uint32_t across, groups; /* threads along the channels; blocks in that direction */
    uint32_t parts;
};

/* V: the elements that may be accessed at a time; as FOR_PACK's. */
static inline uint32_t channels_at_once(struct cuda_map m)
{
    int V = m.type == CUDA_F32 ? 4 : 8;
    return (uint32_t)(m.C % V == 0 ? V : 1);
}

/* About `most` blocks, whose threads iterate at least `least` times. */
static inline struct channels channels_of(struct cuda_map m, uint32_t V, uint32_t most,
                                          uint32_t least)
{
    struct channels s;
    s.C = (uint32_t)m.C;
    s.count = (uint32_t)m.n * (uint32_t)m.H * (uint32_t)m.W;
    s.across = 1;
    while (s.across < 32 && s.across * V < s.C)
        s.across *= 2;
    s.groups = (s.C + s.across * V - 1) / (s.across * V);
    uint32_t rounds = s.count / (THREADS / s.across) / least;
    s.parts = min(rounds, most / s.groups);
    s.parts = s.parts > 0 ? s.parts : 1;
    return s;
}

/* For sums, which have to fit into CUDA_ROOM. Small inputs use one part, and are
 * finished at once. */
static inline struct channels channels_to_sum(struct cuda_map m, uint32_t V)
{
    struct channels s = channels_of(m, V, MOST_SUMMERS, 8);
    s.parts = min(s.parts, (uint32_t)CUDA_ROOM / SUMS / s.C);
    return s.parts > 4 ? s : channels_of(m, V, 0, 1);
}

static inline int channels_blocks(const struct channels &s)
{
    return (int)(s.groups * s.parts);
}

template <int V, class F>
static __device__ inline void channels_visit(const struct channels &s, F *f)
{
    uint32_t t = threadIdx.x, part = blockIdx.x / s.groups, lanes = THREADS / s.across;
    uint32_t c = (blockIdx.x % s.groups * s.across + t % s.across) * V;
    if (c >= s.C)
        return;
    f->begin(c);
    for (uint32_t q = part * lanes + t / s.across; q < s.count; q += s.parts * lanes)
        f->at(q * s.C + c);
}

template <int V, class F> static __global__ void channels_walk(F f, struct channels s)
{
    channels_visit<V>(s, &f);
}

/* `first`, `second`: of a single part, where its sums go; NULL: nowhere. */
template <int V, class F>
static __global__ void channels_sum(F f, struct channels s, float *room, float *first,
                                    float *second)
{
    __shared__ float sums[SUMS][V][THREADS + 1];
    uint32_t t = threadIdx.x, part = blockIdx.x / s.groups, width = s.across * V;
    for (int v = 0; v < V; v++)
        f.sums[v][0] = f.sums[v][1] = 0;
    channels_visit<V>(s, &f);
    for (int k = 0; k < SUMS; k++)
        for (int v = 0; v < V; v++)
            sums[k][v][t] = f.sums[v][k];
    __syncthreads();
    for (uint32_t half = THREADS / 2; half >= s.across; half /= 2) {
        for (int k = 0; k < SUMS && t < half; k++)
            for (int v = 0; v < V; v++)
                sums[k][v][t] += sums[k][v][t + half];
        __syncthreads();
    }
    for (uint32_t u = t; u < SUMS * width; u += THREADS) {
        uint32_t k = u / width, at = u % width, c = blockIdx.x % s.groups * width + at;
        if (c >= s.C)
            continue;
        float sum = sums[k][at % V][at / V], *to = k == 0 ? first : second;
        if (s.parts == 1 && to)
            to[c] = sum;
        room[(k * s.parts + part) * s.C + c] = sum;
    }
}

/* Blocks of THREADS that add the parts: WHOLE channels each. */
static inline int channels_ends(const struct channels &s)
{
    return (int)((s.C + WHOLE - 1) / WHOLE);
}

/* Compensated sum: sum + rest has twice a float's digits, since the rounding error of
 * each addition is kept. (Knuth, TAOCP 2, 4.2.2.) Most chips have only two lanes for
 * doubles. */
static __device__ inline void add_exactly(float x, float *sum, float *rest)
{
    float whole = *sum + x, added = whole - *sum;
    *rest += (*sum - (whole - added)) + (x - added);
    *sum = whole;
}

/* A channel's sums over all parts. Returns true in the one thread that gets them. */
static __device__ inline bool channels_whole(const struct channels &s, const float *room,
                                             uint32_t *channel, double *whole)
{
    __shared__ double sums[SUMS][THREADS];
    uint32_t t = threadIdx.x, c = blockIdx.x * WHOLE + t % WHOLE;
    uint32_t parts = s.count > 0 ? s.parts : 0; /* zero parts if there are no samples */
    for (uint32_t k = 0; k < SUMS; k++) {
        float sum = 0, rest = 0;
        for (uint32_t p = t / WHOLE; c < s.C && p < parts; p += THREADS / WHOLE)
            add_exactly(room[(k * s.parts + p) * s.C + c], &sum, &rest);
        sums[k][t] = (double)sum + (double)rest;
    }
    __syncthreads();
    for (int k = 0; k < SUMS && t < WHOLE; k++) {
        whole[k] = 0;
        for (uint32_t i = t; i < THREADS; i += WHOLE)
            whole[k] += sums[k][i];
    }
    *channel = c;
    return t < WHOLE && c < s.C;
}

static __global__ void channels_end(struct channels s, const float *room, float *first,
                                    float *second)
{
    uint32_t c;
    double whole[SUMS];
    if (!channels_whole(s, room, &c, whole))
        return;
    if (first)
        first[c] = (float)whole[0];
    if (second)
        second[c] = (float)whole[1];
}

/* Of several parts: see channels_sum(). */
static inline void put_channels_end(const struct channels &s, const float *room,
                                    float *first, float *second, cudaStream_t stream)
{
    if (s.parts > 1)
        LAUNCH(channels_end, channels_ends(s), THREADS, stream, s, room, first, second);
}

/* Launch a kernel of struct OPERATION<T, V>, which the last arguments initialise. */
#define WALK(operation, s, stream, ...)                                              \
    LAUNCH((channels_walk<V, operation<T, V>>), channels_blocks(s), THREADS, stream, \
           (operation<T, V>{__VA_ARGS__}), s)
#define SUM(operation, s, room, first, second, stream, ...)                         \
    LAUNCH((channels_sum<V, operation<T, V>>), channels_blocks(s), THREADS, stream, \
           (operation<T, V>{__VA_ARGS__}), s, room, first, second)

#endif
