/* worker/kernels/scratch.h - scratch memory of the engines: zeroed, aligned to cache
 * lines, with one line to spare at the end, so that a loop may load one vector too
 * many; in huge pages where available. Freed with free(). */
#ifndef WORKER_KERNELS_SCRATCH_H
#define WORKER_KERNELS_SCRATCH_H

#include "common/mem.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static inline float *scratch(size_t floats)
{
    enum { LARGE = 2 << 20 };
    size_t bytes = floats * sizeof(float) + 64, unit = bytes < 2 * LARGE ? 64 : LARGE;
    bytes = (bytes + unit - 1) / unit * unit;
    void *p = aligned_alloc(unit, bytes);
    if (p && unit == LARGE)
        madvise(p, bytes, MADV_HUGEPAGE);                 /* before the first access */
    return p ? memset(p, 0, bytes) : xaligned(64, bytes); /* reports the failure */
}

#endif
