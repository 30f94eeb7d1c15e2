/* bench/collectives/contest.h - the same loops around every contestant
 *
 * A contestant is a program per rank. Its last arguments are a task, how often to
 * measure, and sizes in bytes; of each size rank 0 prints a line with the best
 * measurement.
 *
 * all_reduce: sums of floats, in place. The sums of one vector are checked, then a number
 * of calls back to back is timed: "bytes microseconds" of a call.
 *
 * messages: between ranks 0 and 1. What arrives is checked, then one message is sent to
 * and fro, and then a window of them one way until the last is confirmed: "bytes
 * microseconds megabytes-per-second", of a message one way.
 *
 * Standard C only, so that every MPI compiles it.
 */
#ifndef BENCH_COLLECTIVES_CONTEST_H
#define BENCH_COLLECTIVES_CONTEST_H

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CONTEST_ROOM = 32 << 20, CONTEST_WINDOW = 16 };

struct contestant {
    int rank, size, unchecked; /* unchecked: nothing is added */
    float *data;               /* CONTEST_ROOM bytes */
    void (*all_reduce)(float *data, size_t count);
    void (*barrier)(void);
    /* `n` messages between ranks 0 and 1: one by one when n is 1, else all under way at
     * once, and all from or into `data`; NULL: no messages */
    void (*send)(void *data, size_t bytes, int n);
    void (*recv)(void *data, size_t bytes, int n);
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

static inline void contest_all_reduce(const struct contestant *c, int blocks,
                                      size_t bytes)
{
    size_t count = bytes / sizeof(float);
    if (!c->unchecked)
        contest_check(c, count);
    for (size_t i = 0; i < count; i++)
        c->data[i] = 0.0f; /* sums stay 0, however many */
    /* the number of calls must be the same on every rank: by size, not by the clock */
    long times = bytes <= 8192 ? 3000 : (long)(60e6 / (double)bytes);
    times = times * 2 / c->size + 3;
    double best = contest_time(c, count, times / 4 + 1);
    for (int i = 0; i < blocks; i++) {
        double us = contest_time(c, count, times);
        best = us < best ? us : best;
    }
    if (c->rank == 0)
        printf("%zu %.4f\n", bytes, best);
}

/* Rank 0 sends first; what comes back is what went. */
static inline void contest_bounce(const struct contestant *c, size_t bytes, long times)
{
    for (long i = 0; i < times; i++) {
        if (c->rank == 0)
            c->send(c->data, bytes, 1);
        c->recv(c->data, bytes, 1);
        if (c->rank == 1)
            c->send(c->data, bytes, 1);
    }
}

static inline void contest_stream(const struct contestant *c, size_t bytes, int window,
                                  long times)
{
    for (long i = 0; i < times; i++) {
        if (c->rank == 0)
            c->send(c->data, bytes, window);
        else
            c->recv(c->data, bytes, window);
    }
    char confirmed = 0;
    if (c->rank == 0)
        c->recv(&confirmed, 1, 1);
    else
        c->send(&confirmed, 1, 1);
}

static inline void contest_check_message(const struct contestant *c, size_t bytes)
{
    unsigned char *p = (unsigned char *)c->data;
    for (size_t i = 0; i < bytes; i++)
        p[i] = c->rank == 0 ? (unsigned char)(i % 251) : 0;
    contest_bounce(c, bytes, 1);
    for (size_t i = 0; i < bytes; i++) {
        if (p[i] != i % 251) {
            fprintf(stderr, "byte %zu of %zu is wrong\n", i, bytes);
            exit(1);
        }
    }
}

static inline void contest_messages(const struct contestant *c, int blocks, size_t bytes)
{
    int window = bytes * CONTEST_WINDOW > CONTEST_ROOM ? 4 : CONTEST_WINDOW;
    long times = bytes <= 8192 ? 1000 : (long)(8e6 / (double)bytes) + 2;
    double latency = 1e30, each = 1e30;
    contest_check_message(c, bytes);
    contest_bounce(c, bytes, times / 4 + 1);
    for (int i = 0; i < blocks; i++) {
        c->barrier();
        double began = contest_us();
        contest_bounce(c, bytes, times);
        double us = (contest_us() - began) / (double)times / 2;
        latency = us < latency ? us : latency;
        long turns = times / window + 1;
        c->barrier();
        began = contest_us();
        contest_stream(c, bytes, window, turns);
        us = (contest_us() - began) / (double)turns / window;
        each = us < each ? us : each;
    }
    if (c->rank == 0)
        printf("%zu %.4f %.4f\n", bytes, latency, (double)bytes / each);
}

/* args: the task, how often, sizes. */
static inline void contest_run(const struct contestant *c, int nargs, char **args)
{
    int messages = nargs > 0 && strcmp(args[0], "messages") == 0;
    int blocks = nargs > 1 ? atoi(args[1]) : 0;
    if (blocks < 1 || (!messages && strcmp(args[0], "all_reduce") != 0) ||
        (messages && !c->send)) {
        fprintf(stderr, "the last arguments are: all_reduce|messages TIMES BYTES...\n");
        exit(2);
    }
    for (int k = 2; k < nargs; k++) {
        size_t bytes = strtoull(args[k], NULL, 10);
        if (bytes > CONTEST_ROOM)
            continue;
        (messages ? contest_messages : contest_all_reduce)(c, blocks, bytes);
    }
    fflush(stdout);
}

#endif
