/* worker/kernels/scratch.h - scratch memory of the engines: zeroed, aligned to cache
 * lines, with one line to spare at the end, so that a loop may load one vector too
 * many; in huge pages where available. Freed with free(). */
#ifndef WORKER_KERNELS_SCRATCH_H
#define WORKER_KERNELS_SCRATCH_H

#include "common/mem.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { SCRATCH_LARGE = 2 << 20 };

static inline float *scratch_raw(size_t bytes)
{
    void *p;
    if (posix_memalign(&p, bytes < SCRATCH_LARGE ? 64 : SCRATCH_LARGE, bytes))
        return xaligned(64, bytes); /* reports the failure */
    if (bytes >= SCRATCH_LARGE)
        madvise(p, bytes, MADV_HUGEPAGE); /* before the first access */
    return p;
}

static inline size_t scratch_size(size_t floats)
{
    return (floats + 31) / 16 * 64;
}

static inline float *scratch(size_t floats)
{
    size_t bytes = scratch_size(floats);
    return memset(scratch_raw(bytes), 0, bytes);
}

/* The same; a large block takes memory where it is first accessed. */
static inline float *scratch_sparse(size_t floats)
{
    size_t bytes = scratch_size(floats), fresh = bytes / SCRATCH_LARGE * SCRATCH_LARGE;
    float *p = scratch_raw(bytes);
    if (fresh > 0 && madvise(p, fresh, MADV_DONTNEED) < 0)
        fresh = 0;
    memset((char *)p + fresh, 0, bytes - fresh);
    return p;
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
