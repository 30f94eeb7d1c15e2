/* bench/collectives/contest.h - the same loop around every contestant
 *
 * A contestant is a program per rank that all-reduces (sum of floats, in place) vectors
 * of the sizes on its command line. For each size it first checks the sums of one vector,
 * then times a number of calls back to back, three times, and rank 0 prints "bytes
 * microseconds" of the best. Standard C only, so that every MPI compiles it.
 */
#ifndef BENCH_COLLECTIVES_CONTEST_H
#define BENCH_COLLECTIVES_CONTEST_H

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

struct contestant {
    int rank, size, unchecked; /* unchecked: nothing is added */
    float *data;               /* room for the longest */
    void (*all_reduce)(float *data, size_t count);
    void (*barrier)(void);
};

static inline double contest_us(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec * 1e6 + (double)ts.tv_nsec / 1e3;
}

/* One CPU a rank, the same for all contestants. */
static inline void contest_pin(int rank)
{
    cpu_set_t all, one;
    CPU_ZERO(&all);
    CPU_ZERO(&one);
    sched_getaffinity(0, sizeof all, &all);
    int n = CPU_COUNT(&all), want = n > 0 ? rank % n : 0;
    for (int c = 0; c < CPU_SETSIZE; c++) {
        if (CPU_ISSET(c, &all) && want-- == 0)
            CPU_SET(c, &one);
    }
    sched_setaffinity(0, sizeof one, &one);
}

static inline void contest_check(const struct contestant *c, size_t count)
{
    for (size_t i = 0; i < count; i++)
        c->data[i] = (float)(c->rank + 1 + (int)(i % 7));
    c->all_reduce(c->data, count);
    for (size_t i = 0; i < count; i++) {
        float want = (float)(c->size * (c->size + 1) / 2 + c->size * (int)(i % 7));
        if (c->data[i] != want) {
            fprintf(stderr, "element %zu of %zu is %g, not %g\n", i, count,
                    (double)c->data[i], (double)want);
            exit(1);
        }
    }
}

static inline double contest_time(const struct contestant *c, size_t count, long times)
{
    c->barrier();
    double began = contest_us();
    for (long i = 0; i < times; i++)
        c->all_reduce(c->data, count);
    return (contest_us() - began) / (double)times;
}

static inline void contest_run(const struct contestant *c, int nsizes, char **sizes)
{
    for (int k = 0; k < nsizes; k++) {
        size_t bytes = strtoull(sizes[k], NULL, 10), count = bytes / sizeof(float);
        if (!c->unchecked)
            contest_check(c, count);
        for (size_t i = 0; i < count; i++)
            c->data[i] = 0.0f; /* sums stay 0, however many */
        /* the number of calls must be the same on every rank: by size, not by the clock
         */
        long times = bytes <= 8192 ? 3000 : (long)(60e6 / (double)bytes) + 3;
        double best = contest_time(c, count, times / 4 + 1);
        for (int i = 0; i < 12; i++) {
            double us = contest_time(c, count, times);
            best = us < best ? us : best;
        }
        if (c->rank == 0)
            printf("%zu %.4f\n", bytes, best);
    }
    fflush(stdout);
}

#endif
