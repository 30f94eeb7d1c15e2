/* worker/cuda/autotune.cu - see kernels.h: inputs to measure algorithms with, and the
 * difference of two results
 */
#include "worker/cuda/device.h"

template <typename T> static __global__ void scatter(T *to, int64_t n, uint32_t seed)
{
    for (EACH(i, n)) { /* Wellons' lowbias32 hash */
        uint32_t x = (uint32_t)i + seed * 0x9e3779b9u;
        x = (x ^ x >> 16) * 0x7feb352du;
        x = (x ^ x >> 15) * 0x846ca68bu;
        put(to + i, (float)((x ^ x >> 16) >> 8) * 0x1p-23f - 1);
    }
}

void cuda_scatter(void *to, int64_t n, enum cuda_type type, uint32_t seed,
                  cudaStream_t stream)
{
    FOR_TYPE(type, LAUNCH(scatter<T>, blocks_for(n), THREADS, stream, (T *)to, n, seed));
}

template <typename T>
static __global__ void differ(const T *is, const T *expected, int64_t n, double *parts)
{
    __shared__ double room[THREADS];
    double apart = 0, whole = 0;
    for (EACH(i, n)) {
        double a = (double)get(is[i]), b = (double)get(expected[i]);
        apart += (a - b) * (a - b);
        whole += b * b;
    }
    apart = block_sum(apart, room);
    whole = block_sum(whole, room);
    if (threadIdx.x == 0) {
        parts[blockIdx.x] = apart;
        parts[CUDA_PARTS + blockIdx.x] = whole;
    }
}

void cuda_differ(const void *is, const void *expected, int64_t n, enum cuda_type type,
                 double *parts, cudaStream_t stream)
{
    int64_t blocks = 1 + n / (16 * THREADS);
    blocks = blocks < CUDA_PARTS ? blocks : CUDA_PARTS;
    FOR_TYPE(type, LAUNCH(differ<T>, blocks, THREADS, stream, (const T *)is,
                          (const T *)expected, n, parts));
}
