/* worker/data/random.h - a sequence of random numbers for each (seed, stream)
 *
 * A counter on worker/kernels/rng.h: the same on every rank and every machine.
 */
#ifndef WORKER_DATA_RANDOM_H
#define WORKER_DATA_RANDOM_H

#include "worker/kernels/rng.h"

#include <math.h>

struct random {
    uint64_t key, drawn;
};

/* Streams of one seed. The model uses stream 0 of rng.h for its initial weights. */
enum random_stream {
    STREAM_SAMPLE = (1 << 20) - 1,
    STREAM_TRAIN_LINE,
    STREAM_TEST_LINE,
    STREAM_ORDER /* plus the epoch */
};

static inline struct random random_make(uint64_t seed, uint64_t stream)
{
    return (struct random){rng_key(seed, stream), 0};
}

static inline uint64_t random_next(struct random *r)
{
    return rng_word(r->key, r->drawn++);
}

/* 0 <= result < n, each equally likely (Lemire, 2019: multiply, reject the uneven rest).
 */
static inline uint32_t random_below(struct random *r, uint32_t n)
{
    uint64_t m = (random_next(r) >> 32) * n;
    while ((uint32_t)m < n && (uint32_t)m < -n % n)
        m = (random_next(r) >> 32) * n;
    return (uint32_t)(m >> 32);
}

/* In (0, 1). */
static inline double random_unit(struct random *r)
{
    return ((double)(random_next(r) >> 12) + 0.5) * 0x1p-52;
}

/* Mean 0, variance 1 (Box and Muller, 1958). */
static inline double random_normal(struct random *r)
{
    double radius = sqrt(-2 * log(random_unit(r)));
    return radius * cos(2 * M_PI * random_unit(r));
}

#endif
