/* tests/worker/kernels/engines.h - the engines of this machine, in Check's loop tests
 *
 * A loop test runs its cases for MAX_ENGINES engines, and returns at once for one that
 * this machine does not have.
 */
#ifndef TESTS_WORKER_KERNELS_ENGINES_H
#define TESTS_WORKER_KERNELS_ENGINES_H

#include "worker/kernels/kernels.h"

#define MAX_ENGINES 8

static inline int nengines(void)
{
    int n = 0;
    while (kernels_names()[n])
        n++;
    return n;
}

#endif
