/* worker/cuda/device.h - common code of the kernels; for .cu files only
 *
 * Grid-stride loops, or one block where the order of summation matters. Kernels are
 * launched by LAUNCH alone: the tests compile these files for the CPU, with a loop in
 * place of PUT_KERNEL, and a launch that is rejected is reported with its kernel's
 * name.
 *
 * Images have fewer than 2^31 elements (layers.c checks it), so that positions are
 * 32-bit numbers: a division of 64 bits takes a GPU a hundred instructions.
 */
#ifndef WORKER_CUDA_DEVICE_H
#define WORKER_CUDA_DEVICE_H

#include "worker/cuda/failure.h"
#include "worker/cuda/kernels.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#ifndef PUT_KERNEL
#define PUT_KERNEL(kernel, blocks, threads, stream, ...) \
    kernel<<<(blocks), (threads), 0, (stream)>>>(__VA_ARGS__)
#endif
#define LAUNCH(kernel, ...)              \
    do {                                 \
        if (cuda_failed())               \
            break;                       \
        PUT_KERNEL(kernel, __VA_ARGS__); \
        cuda_launched(#kernel);          \
    } while (0)

/* A GPU requires vector accesses to be aligned to their size and ends the program
 * otherwise. A CPU does not, so the tests check it here. */
#ifndef MUST_LIE
#define MUST_LIE(at, bytes)
#endif

enum { THREADS = 256, MAX_BLOCKS = 2048 };

/* A block for each of n, and a thread for each; they loop if there are more. */
static inline int blocks_of(int64_t n)
{
    return (int)(n < 1 ? 1 : n > MAX_BLOCKS ? MAX_BLOCKS : n);
}

static inline int blocks_for(int64_t n)
{
    return blocks_of((n + THREADS - 1) / THREADS);
}

#define EACH(i, n)                                              \
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; \
    i < (n);                                                    \
    i += (int64_t)gridDim.x * blockDim.x

/* The same over the elements of images. */
#define EACH_OF(i, n)                                   \
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; \
    i < (n);                                            \
    i += gridDim.x * blockDim.x

/* ---- types ---- */

/* To a float, and from it: rounded to the nearest. */
template <class T> static __device__ inline float get(T v)
{
    return (float)v;
}

template <class T> static __device__ inline void put(T *to, float v)
{
    *to = T(v);
}

/* Runs a statement with T as the type. */
#define FOR_TYPE(type, ...)                                  \
    do {                                                     \
        switch (type) {                                      \
            TYPE_CASE(CUDA_F32, float, __VA_ARGS__)          \
            TYPE_CASE(CUDA_BF16, __nv_bfloat16, __VA_ARGS__) \
            TYPE_CASE(CUDA_F16, __half, __VA_ARGS__)         \
        }                                                    \
    } while (0)
#define TYPE_CASE(type, name, ...) \
    case type: {                   \
        typedef name T;            \
        __VA_ARGS__;               \
        break;                     \
    }

/* The same, with V: 16 bytes of elements at once, or one element. */
#define FOR_PACK(type, wide, ...)               \
    FOR_TYPE(                                   \
        type,                                   \
        if (wide) {                             \
            enum { V = (int)(16 / sizeof(T)) }; \
            __VA_ARGS__;                        \
        } else {                                \
            enum { V = 1 };                     \
            __VA_ARGS__;                        \
        })

/* V adjacent elements, aligned to their total size, as floats: one memory access. */
template <int V, class T> static __device__ inline void load(const T *from, float *to)
{
    struct alignas(sizeof(T) * V) words {
        T of[V];
    };
    MUST_LIE(from, sizeof(words));
    words some = *reinterpret_cast<const words *>(from);
    for (int k = 0; k < V; k++)
        to[k] = get(some.of[k]);
}

template <int V, class T> static __device__ inline void store(const float *from, T *to)
{
    struct alignas(sizeof(T) * V) words {
        T of[V];
    } some;
    for (int k = 0; k < V; k++)
        put(&some.of[k], from[k]);
    MUST_LIE(to, sizeof(words));
    *reinterpret_cast<words *>(to) = some;
}

/* ---- positions ---- */

/* Division by a number known before the launch, as a multiplication; exact for numbers
 * below 2^31. With 2^(s-1) < by <= 2^s and magic = 2^(31+s) / by + e, 0 < e <= 1, the
 * error n e / 2^(31+s) is less than 1 / by. (Granlund and Montgomery, "Division by
 * invariant integers using multiplication", PLDI 1994.) */
struct divide {
    uint32_t by, magic, shift;
};

static inline struct divide divide_by(uint32_t by)
{
    struct divide d = {by, 0, 31};
    while ((uint64_t)1 << (d.shift - 31) < by)
        d.shift++;
    d.magic = (uint32_t)(((uint64_t)1 << d.shift) / (by ? by : 1) + 1);
    return d;
}

static __device__ inline uint32_t over(uint32_t n, const struct divide &d)
{
    return (uint32_t)((uint64_t)n * d.magic >> d.shift);
}

/* Returns n / d and sets n to the remainder. */
static __device__ inline uint32_t split(uint32_t *n, const struct divide &d)
{
    uint32_t whole = over(*n, d);
    *n -= whole * d.by;
    return whole;
}

struct place {
    uint32_t b, c, h, w;
};

/* The shape of images. */
struct layout {
    struct divide C, H, W;
};

static inline struct layout layout_of(struct cuda_map m)
{
    return (struct layout){divide_by((uint32_t)m.C), divide_by((uint32_t)m.H),
                           divide_by((uint32_t)m.W)};
}

static __device__ inline struct place place_at(uint32_t i, const struct layout &l)
{
    struct place p;
    uint32_t pixel = split(&i, l.C), row = split(&pixel, l.W);
    p.b = split(&row, l.H);
    p.h = row;
    p.w = pixel;
    p.c = i;
    return p;
}

static inline uint32_t elements(struct cuda_map m)
{
    return (uint32_t)m.n * (uint32_t)m.C * (uint32_t)m.H * (uint32_t)m.W;
}

/* ---- sums ---- */

/* The sum of x over all threads of a block of THREADS, in a fixed order, sixteen at a
 * time. Thread 0 gets it. Only one warp adds, since doubles are slow on most chips
 * (two lanes per multiprocessor). */
static __device__ inline double block_sum(double x, double *room)
{
    enum { SIDE = 16 };
    static_assert((int)THREADS == SIDE * SIDE, "a square of threads");
    room[threadIdx.x] = x;
    __syncthreads();
    double sum = 0;
    if (threadIdx.x < SIDE) {
        for (int i = 0; i < SIDE; i++)
            sum += room[i * SIDE + threadIdx.x];
        room[threadIdx.x] = sum; /* no other thread has read it */
    }
    __syncthreads();
    sum = 0;
    for (int i = 0; threadIdx.x == 0 && i < SIDE; i++)
        sum += room[i];
    __syncthreads();
    return sum;
}

#endif
