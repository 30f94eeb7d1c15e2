/* worker/kernels/rng.h - random numbers as a function of (seed, stream, index)
 *
 * Counter-based: nothing is remembered between draws, so every engine, thread and rank
 * that asks for the same number gets the same bits, in any order. The mixer is the
 * finaliser of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
 * generators", OOPSLA 2014), applied to a Weyl sequence that starts at a key.
 */
#ifndef WORKER_KERNELS_RNG_H
#define WORKER_KERNELS_RNG_H

#include <stdint.h>

#ifdef __CUDACC__ /* the same bits on a GPU */
#define RNG_FN static __host__ __device__ inline
#else
#define RNG_FN static inline
#endif

#define RNG_WEYL UINT64_C(0x9e3779b97f4a7c15) /* 2^64 / golden ratio */

RNG_FN uint64_t rng_mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* The start of a stream's sequence. */
RNG_FN uint64_t rng_key(uint64_t seed, uint64_t stream)
{
    return rng_mix(rng_mix(seed + RNG_WEYL) ^ (stream * RNG_WEYL));
}

RNG_FN uint64_t rng_word(uint64_t key, uint64_t index)
{
    return rng_mix(key + (index + 1) * RNG_WEYL);
}

/* Uniform in [0, 1), 24 bits: exactly representable as float. */
RNG_FN float rng_uniform(uint64_t key, uint64_t index)
{
    return (float)(rng_word(key, index) >> 40) * 0x1p-24f;
}

/* Dropout's streams. A step has a seed, from which each layer of each micro-batch of each
 * rank draws the stream `draw * layers + layer`. rng_key() is a bijection of the stream,
 * so the streams of a step differ: draws are below 2^49, layers at most 10000. */
#define DROPOUT_STREAM \
    (UINT64_C(1) << 63) /* no other use of a seed has so high streams */
enum { DROPOUT_BATCHES = 4096, DROPOUT_MICRO = 64 }; /* of a rank's step, of a batch */

RNG_FN uint64_t dropout_seed(uint64_t seed, uint64_t step)
{
    return rng_key(seed, DROPOUT_STREAM + step);
}

/* That of a rank's first micro-batch; those of its other batches follow. */
RNG_FN uint64_t dropout_draw(int rank)
{
    return (uint64_t)rank * DROPOUT_BATCHES * DROPOUT_MICRO;
}

RNG_FN uint64_t dropout_key(uint64_t seed, uint64_t draw, int layer, int layers)
{
    return rng_key(seed, draw * (uint64_t)layers + (uint64_t)layer);
}

/* Element i is kept unless 16 bits of word i/4 (lane i%4 from the low end)
 * are below this threshold. So p is rounded to 1/65536, and kept elements are scaled
 * by the inverse of the rounded 1-p. */
RNG_FN uint32_t rng_drop_below(float p)
{
    return (uint32_t)(p * 65536.0f + 0.5f);
}

RNG_FN float rng_keep_scale(float p)
{
    return 65536.0f / (65536.0f - (float)rng_drop_below(p));
}

#endif
