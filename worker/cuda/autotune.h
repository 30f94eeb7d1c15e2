/* worker/cuda/autotune.h - the fastest algorithm for each product, by measurement
 *
 * Before a step is captured, every algorithm that the library offers for a product is
 * timed on the net's own buffers, as a graph. The fastest is chosen if its gain
 * exceeds the error of the measurement. A candidate whose result differs from the
 * default algorithm's by more than rounding is rejected with a warning; one that
 * cannot be built, fails or cannot be captured is skipped.
 *
 * The product runs repeatedly when it is timed, so its operands are in cache more
 * often than in a step.
 *
 * One rank measures and all ranks follow: autotune_measure() on one rank, then
 * autotune_try() and autotune_take() on all. Never called during capture.
 */
#ifndef WORKER_CUDA_AUTOTUNE_H
#define WORKER_CUDA_AUTOTUNE_H

#include "common/strv.h"
#include "worker/cuda/layers.h"

#include <stdbool.h>
#include <stdint.h>

enum { AUTOTUNE_HEADER = 160 };
/* The name of the library's default algorithm. */
#define AUTOTUNE_USUAL "-"

struct tuner {
    struct strv choices; /* "KEY=NAME": a product's key, its algorithm's (products.h) */
    double *gains;       /* owned, by choice: microseconds saved; 0: an earlier run's */
    size_t ngains;       /* none of later choices */
    int64_t most_ns, spent_ns; /* limit of the time for measuring, and time used */
    /* Numbers of products: to be measured; with a choice other than the default; with
     * candidates left out for lack of time. */
    int products, changed, in_vain;
    int lacking;          /* choices that some rank could not build */
    double usual_us, us;  /* sums over the measured products: default, chosen */
    struct strv warnings; /* a line each */
    bool taken_over;      /* choices came from an earlier run */
};

/* All choices as a text for other ranks and for checkpoints, "1 HEADER;KEY=NAME;...";
 * the caller frees. And from such a text: false, and no choices, if it is malformed. */
char *autotune_write(const struct tuner *t, const char *header);
bool autotune_read(struct tuner *t, const char *text, char header[AUTOTUNE_HEADER]);
/* `text`, AUTOTUNE_HEADER bytes: versions and device that the names of algorithms
 * depend on. */
int autotune_header(char *text, struct ddp_err *err);

/* Measures the net's products of n samples that have no choice yet. Overwrites
 * activations and gradients, also `grads`, which every step writes anew. */
int autotune_measure(struct tuner *t, struct layers *net, int n, float *grads,
                     struct ddp_err *err);
/* Builds the choices for the net's products of n samples; sets fails[i] to 1 if choice
 * i cannot be built here. */
int autotune_try(const struct tuner *t, struct layers *net, int n, uint8_t *fails,
                 struct ddp_err *err);
/* Resets choice i to the default algorithm. */
void autotune_drop(struct tuner *t, size_t i);
/* Makes the net's plans, present and future, use the choices. */
void autotune_take(const struct tuner *t, struct layers *net);
/* A description for the user: "9 of 12 products ..." */
void autotune_describe(const struct tuner *t, char *text, size_t size);
void autotune_free(struct tuner *t);

#endif
