/* worker/data/normalise.h - from bytes to numbers of about mean 0 and deviation 1
 *
 * For each channel x = (pixel / 255 - mean) / std, rounded to float at each of the three
 * operations, which is what torchvision's ToTensor() and Normalize(mean, std) do: the
 * same bits. A pixel has 256 values, so the formula is a table.
 */
#ifndef WORKER_DATA_NORMALISE_H
#define WORKER_DATA_NORMALISE_H

#include "include/ddprun/err.h"

#include <stddef.h>
#include <stdint.h>

enum { NORMALISE_CHANNELS = 3 };

struct normalise {
    int channels; /* 0: those of the training images themselves; 1: all alike */
    float mean[NORMALISE_CHANNELS], std[NORMALISE_CHANNELS]; /* of pixel / 255 */
};

/* "data"; a name that people use such numbers by: "mnist", "cifar10", "cifar100",
 * "imagenet"; "none", the pixels / 255 as they are; or the numbers, as in
 * "0.49,0.48,0.45/0.25,0.24,0.26". */
int normalise_parse(const char *text, struct normalise *out, struct ddp_err *err);

/* The mean and deviation of each channel of n images [n, C, plane]. Exact sums first, so
 * that every rank and every machine has the same numbers. `name` is for the error. */
int normalise_measure(const char *name, const uint8_t *pixels, size_t n, int channels,
                      size_t plane, struct normalise *out, struct ddp_err *err);

/* Numbers for `channels` channels from those that were given. */
int normalise_spread(struct normalise *n, int channels, struct ddp_err *err);

void normalise_table(const struct normalise *n, float table[][256]);

#endif
