/* worker/data/normalise.c - see normalise.h */
#include "worker/data/normalise.h"

#include "common/err.h"
#include "common/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* As in PyTorch's examples and torchvision's references. */
static const struct named {
    const char *name;
    struct normalise is;
} known[] = {
    {"data", {0}},
    {"none", {1, {0}, {1}}},
    {"mnist", {1, {0.1307f}, {0.3081f}}},
    {"cifar10", {3, {0.4914f, 0.4822f, 0.4465f}, {0.2470f, 0.2435f, 0.2616f}}},
    {"cifar100", {3, {0.5071f, 0.4865f, 0.4409f}, {0.2673f, 0.2564f, 0.2762f}}},
    {"imagenet", {3, {0.485f, 0.456f, 0.406f}, {0.229f, 0.224f, 0.225f}}},
};

/* Parses numbers separated by commas, up to `end`; returns how many, or -1. */
static int take_numbers(const char *text, const char *end, float to[NORMALISE_CHANNELS])
{
    for (int n = 0; n < NORMALISE_CHANNELS; n++) {
        char *next;
        to[n] = strtof(text, &next);
        if (next == text || !isfinite(to[n]) || (*next != ',' && next != end))
            return -1;
        if (next == end)
            return n + 1;
        text = next + 1;
    }
    return -1;
}

int normalise_parse(const char *text, struct normalise *out, struct ddp_err *err)
{
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (strcmp(known[i].name, text) == 0) {
            *out = known[i].is;
            return 0;
        }
    const char *slash = text + strcspn(text, "/");
    int means = *slash ? take_numbers(text, slash, out->mean) : -1;
    int stds = *slash ? take_numbers(slash + 1, text + strlen(text), out->std) : -1;
    if (means < 0 || means != stds)
        return err_set(err,
                       "'%s' is not data, none, mnist, cifar10, cifar100, imagenet, or "
                       "means and deviations such as 0.49,0.48,0.45/0.25,0.24,0.26",
                       text);
    for (int c = 0; c < stds; c++)
        if (!(out->std[c] > 0))
            return err_set(err, "'%s': a deviation is above 0", text);
    out->channels = means;
    return 0;
}

int normalise_spread(struct normalise *n, int channels, struct ddp_err *err)
{
    if (n->channels != 1 && n->channels != channels)
        return err_set(err, "--normalize has numbers for %d channels, the images have %d",
                       n->channels, channels);
    for (int c = n->channels; c < channels; c++) {
        n->mean[c] = n->mean[0];
        n->std[c] = n->std[0];
    }
    n->channels = channels;
    return 0;
}

static void measure_channel(const uint8_t *pixels, size_t n, size_t step, size_t plane,
                            double *mean, double *variance)
{
    uint64_t sum = 0, squares = 0;
    for (size_t i = 0; i < n; i++, pixels += step)
        for (size_t p = 0; p < plane; p++) {
            sum += pixels[p];
            squares += (uint64_t)pixels[p] * pixels[p];
        }
    double count = (double)n * (double)plane;
    *mean = (double)sum / count;
    *variance = (double)squares / count - *mean * *mean;
}

int normalise_measure(const char *name, const uint8_t *pixels, size_t n, int channels,
                      size_t plane, struct normalise *out, struct ddp_err *err)
{
    out->channels = channels;
    for (int c = 0; c < channels; c++) {
        double mean, variance;
        measure_channel(pixels + (size_t)c * plane, n, (size_t)channels * plane, plane,
                        &mean, &variance);
        if (!(variance > 0))
            return err_set(err,
                           "'%s': all pixels of channel %d of the training images are "
                           "alike: give --normalize numbers, or 'none'",
                           name, c);
        out->mean[c] = (float)(mean / 255);
        out->std[c] = (float)(sqrt(variance) / 255);
    }
    return 0;
}

void normalise_table(const struct normalise *n, float table[][256])
{
    for (int c = 0; c < n->channels; c++)
        for (int p = 0; p < 256; p++) {
            float x = (float)p / 255.0f;
            x -= n->mean[c];
            table[c][p] = x / n->std[c];
        }
}
