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
    size_t bytes = (floats + 31) / 16 * 64;
    void *p;
    if (posix_memalign(&p, bytes < LARGE ? 64 : LARGE, bytes))
        return xaligned(64, bytes); /* reports the failure */
    if (bytes >= LARGE)
        madvise(p, bytes, MADV_HUGEPAGE); /* before the first access */
    return memset(p, 0, bytes);
}

/* Blocks that are freed at once; zeroed: none. */
struct scratches {
    void **blocks; /* owned */
    size_t n;
};

/* scratch(), kept in the list; of bytes, for other things than floats. */
static inline void *scratch_bytes(struct scratches *s, size_t bytes)
{
    s->blocks = xrealloc(s->blocks, s->n + 1, sizeof *s->blocks);
    return s->blocks[s->n++] = scratch((bytes + sizeof(float) - 1) / sizeof(float));
}

static inline float *scratch_in(struct scratches *s, size_t floats)
{
    return scratch_bytes(s, floats * sizeof(float));
}

static inline void scratches_free(struct scratches *s)
{
    for (size_t i = 0; i < s->n; i++)
        free(s->blocks[i]);
    free(s->blocks);
    *s = (struct scratches){0};
}

#endif
