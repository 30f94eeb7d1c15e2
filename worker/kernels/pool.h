/* worker/kernels/pool.h - the threads of the engines
 *
 * The caller splits a piece of work into pool_threads() parts, runs part 0 itself and
 * waits for all. Helpers poll for the next piece for some microseconds before they
 * sleep, since pieces follow each other closely within a step.
 */
#ifndef WORKER_KERNELS_POOL_H
#define WORKER_KERNELS_POOL_H

/* Sets the calling thread's number of threads, including itself, by starting or ending
 * helpers; n >= 1, and 1 at first. A thread that exits ends its helpers. A layer's plan
 * has scratch memory for the number at its creation and must not be used with more. */
void pool_set(int n);
int pool_threads(void);

typedef void (*pool_work)(int part, int parts, void *arg);
void pool_run(pool_work work, void *arg);
/* Calls item(i, part, arg) for each i below n: a part has neighbours, in their order. */
typedef void (*pool_item)(int i, int part, void *arg);
void pool_each(int n, pool_item item, void *arg);

/* The part's share [*from, *to) of n items, in units of `unit`. */
static inline void pool_share(int n, int unit, int part, int parts, int *from, int *to)
{
    long units = (n + unit - 1) / unit;
    long a = units * part / parts * unit, b = units * (part + 1) / parts * unit;
    *from = (int)(a < n ? a : n);
    *to = (int)(b < n ? b : n);
}

#endif
