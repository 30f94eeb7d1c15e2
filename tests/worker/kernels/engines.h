/* tests/worker/kernels/engines.h - the engines of this machine, in Check's loop tests
 *
 * A loop test runs its cases for MAX_ENGINES engines, and returns at once for one that
 * this machine does not have.
 */
#ifndef TESTS_WORKER_KERNELS_ENGINES_H
#define TESTS_WORKER_KERNELS_ENGINES_H

#include "worker/kernels/kernels.h"

#define MAX_ENGINES 8

/* Of all that run here, those of fp32 first; NULL behind the last. */
static inline const struct kernels *engine_at(int i)
{
    for (const struct kernels_here *e = all_kernels; e->kernels; e++)
        if (e->runs_here() && i-- == 0)
            return e->kernels;
    return NULL;
}

/* How many of them are of fp32. */
static inline int nengines(void)
{
    int n = 0;
    for (const struct kernels_here *e = all_kernels; e->kernels; e++)
        n += e->runs_here() && e->kernels->precision == PRECISION_FP32;
    return n;
}

#endif
