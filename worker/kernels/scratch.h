/* worker/kernels/scratch.h - memory of the engines: zeroed, on cache lines, with a line
 * to spare at the end, so that a loop may load one vector too many. Freed with free(). */
#ifndef WORKER_KERNELS_SCRATCH_H
#define WORKER_KERNELS_SCRATCH_H

#include "common/mem.h"

#include <stdlib.h>
#include <string.h>

static inline float *scratch(size_t floats)
{
    size_t bytes = (floats * sizeof(float) + 63) / 64 * 64 + 64;
    return xaligned(64, bytes);
}

#endif
