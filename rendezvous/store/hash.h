/* rendezvous/store/hash.h - a seeded hash of bytes
 *
 * Sixteen bytes a step: each pair of words is multiplied to 128 bits and folded to 64.
 * The seed, two words, is random per store, so chosen keys cannot be made to collide.
 */
#ifndef RENDEZVOUS_STORE_HASH_H
#define RENDEZVOUS_STORE_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct hash_seed {
    uint64_t a, b;
};

static inline uint64_t hash_fold(uint64_t x, uint64_t y)
{
    __extension__ unsigned __int128 p = (unsigned __int128)x * y;
    return (uint64_t)p ^ (uint64_t)(p >> 64);
}

static inline uint64_t hash_load(const unsigned char *p, size_t n)
{
    uint64_t word = 0;
    memcpy(&word, p, n);
    return word;
}

static inline uint64_t hash_bytes(struct hash_seed seed, const void *data, size_t n)
{
    const unsigned char *p = data;
    uint64_t h = seed.a ^ (n * 0x9e3779b97f4a7c15u), lo = 0, hi = 0;
    for (; n > 16; n -= 16, p += 16)
        h = hash_fold(hash_load(p, 8) ^ seed.b, hash_load(p + 8, 8) ^ h);
    if (n >= 8) {
        lo = hash_load(p, 8);
        hi = hash_load(p + n - 8, 8);
    } else if (n >= 4) {
        lo = hash_load(p, 4);
        hi = hash_load(p + n - 4, 4);
    } else if (n > 0) {
        lo = (uint64_t)p[0] << 16 | (uint64_t)p[n / 2] << 8 | p[n - 1];
    }
    return hash_fold(hash_fold(lo ^ seed.b, hi ^ h) ^ seed.a, 0xd6e8feb86659fd93u);
}

#endif
