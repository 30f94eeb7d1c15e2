/* worker/data/normalise.h - pixels as numbers of about mean 0 and standard deviation 1
 *
 * For each channel x = (pixel / 255 - mean) / std, rounded to float after each of the
 * three operations, as torchvision's ToTensor() and Normalize(mean, std) do, with the
 * same bits. A pixel has 256 values, so the formula is a table.
 */
#ifndef WORKER_DATA_NORMALISE_H
#define WORKER_DATA_NORMALISE_H

#include "include/ddprun/err.h"

#include <stddef.h>
#include <stdint.h>

enum { NORMALISE_CHANNELS = 3 };

struct normalise {
    int channels; /* 0: measured on the training images; 1: the same for all */
    float mean[NORMALISE_CHANNELS], std[NORMALISE_CHANNELS]; /* of pixel / 255 */
};

/* Parses "data" (measure them); "mnist", "cifar10", "cifar100" or "imagenet" (the
 * usual values); "none" (only pixels / 255); or numbers, as in
 * "0.49,0.48,0.45/0.25,0.24,0.26". */
int normalise_parse(const char *text, struct normalise *out, struct ddp_err *err);

/* Measures mean and deviation of each channel of n images [n, C, plane]. The sums are
 * exact, so every rank and machine gets the same values. `name` is for the error. */
int normalise_measure(const char *name, const uint8_t *pixels, size_t n, int channels,
                      size_t plane, struct normalise *out, struct ddp_err *err);

/* Expands the given numbers to `channels` channels. */
int normalise_spread(struct normalise *n, int channels, struct ddp_err *err);

void normalise_table(const struct normalise *n, float table[][256]);

#endif
