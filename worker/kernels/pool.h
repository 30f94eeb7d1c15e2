/* worker/kernels/pool.h - the threads of the engines
 *
 * One caller at a time hands out a piece of work in pool_threads() parts and waits for
 * all of them; it does part 0 itself. Helpers look for the next piece for some
 * microseconds before they sleep, since pieces follow each other closely inside a step.
 */
#ifndef WORKER_KERNELS_POOL_H
#define WORKER_KERNELS_POOL_H

/* Start or end helpers of the calling thread, so that there are n threads with it; n
 * >= 1. A thread that ends has none left. */
void pool_set(int n);
int pool_threads(void);

typedef void (*pool_work)(int part, int parts, void *arg);
void pool_run(pool_work work, void *arg);

/* The part's share [*from, *to) of n things, in units of `unit`. */
static inline void pool_share(int n, int unit, int part, int parts, int *from, int *to)
{
    long units = (n + unit - 1) / unit;
    long a = units * part / parts * unit, b = units * (part + 1) / parts * unit;
    *from = (int)(a < n ? a : n);
    *to = (int)(b < n ? b : n);
}

#endif
