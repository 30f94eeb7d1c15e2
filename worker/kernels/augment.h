/* worker/kernels/augment.h - random shifts and mirroring of training images
 *
 * torchvision's RandomCrop(size, padding=pad) and RandomHorizontalFlip(), drawn for
 * each image of each epoch from random numbers that are a function of (seed, epoch,
 * sample):
 *
 *     key  = rng_key(seed, AUGMENT_STREAM + epoch)      epochs count from 1
 *     word = rng_word(key, sample)                      its number in the training part
 *     dy   = (bits 48 to 63 of word) * (2 pad + 1) / 65536 - pad
 *     dx   = (bits 32 to 47 of word) * (2 pad + 1) / 65536 - pad
 *     mirror, with flip: bit 0 of word
 *
 * Pixel (y, x) of the result is pixel (y + dy, u + dx) of the image, where u is x, or
 * W - 1 - x if mirrored; 0 (black, before normalisation) outside the image. All
 * channels are treated alike. The arithmetic is on integers, so every engine, thread
 * and rank gets the same bits for a sample, in any order.
 */
#ifndef WORKER_KERNELS_AUGMENT_H
#define WORKER_KERNELS_AUGMENT_H

#include "worker/kernels/rng.h"

#include <stdbool.h>
#include <stdint.h>

/* Does not collide with the streams of worker/data/random.h, which count from 0, and of
 * dropout (rng.h). */
#define AUGMENT_STREAM (UINT64_C(1) << 62)

enum { AUGMENT_MOST_PAD = 64 }; /* pixels */

struct augment {
    int pad; /* 0: no shift */
    bool flip;
    uint64_t key; /* of the epoch */
};

struct augment_move {
    int dy, dx;
    bool mirror;
};

RNG_FN uint64_t augment_key(uint64_t seed, uint64_t epoch)
{
    return rng_key(seed, AUGMENT_STREAM + epoch);
}

RNG_FN struct augment_move augment_draw(const struct augment *a, uint64_t sample)
{
    uint64_t word = rng_word(a->key, sample);
    int places = 2 * a->pad + 1;
    struct augment_move m;
    m.dy = (int)(word >> 48) * places / 65536 - a->pad;
    m.dx = (int)(word >> 32 & 0xffff) * places / 65536 - a->pad;
    m.mirror = a->flip && (word & 1);
    return m;
}

#endif
