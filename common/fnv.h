/* common/fnv.h - FNV-1a, a hash of 64 bits */
#ifndef COMMON_FNV_H
#define COMMON_FNV_H

#include <stddef.h>
#include <stdint.h>

#define FNV1A UINT64_C(0xcbf29ce484222325) /* of nothing */

/* The hash of what `hash` is of, and `n` bytes more. */
static inline uint64_t fnv1a(uint64_t hash, const void *data, size_t n)
{
    const unsigned char *p = data;
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ p[i]) * UINT64_C(0x100000001b3);
    return hash;
}

#endif
