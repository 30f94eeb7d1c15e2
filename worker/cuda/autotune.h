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
 * autotune_ranks.c has the choices for all ranks, resumed runs, and new ones.
 */
#ifndef WORKER_CUDA_AUTOTUNE_H
#define WORKER_CUDA_AUTOTUNE_H

#include "common/strv.h"
#include "worker/cuda/layers.h"

#include <stdint.h>

struct tuner {
    /* "KEY=PLACE", as layers_choose() takes them, or "KEY=", if the time did not suffice:
     * the default */
    struct strv choices;
    /* The same of earlier runs, also for products that the net does not have. */
    struct strv earlier;
    char device[160];          /* and libraries, of the choices */
    size_t known;              /* of the choices: places that an earlier run measured */
    int64_t most_ns, spent_ns; /* limit of the time for measuring, and time used */
    /* Numbers of products: to be measured; with a choice other than the default; with
     * candidates left out for lack of time. */
    int products, changed, in_vain;
    double usual_us, us;  /* sums over the measured products: default, chosen */
    int others;           /* ranks that have another device or other libraries */
    char unkept[200];     /* why no later run will know the choices; "": it will */
    struct strv warnings; /* a line each */
};

/* Measures the net's products of n samples that have no choice yet, unless an earlier run
 * has chosen; layers_choose() makes the net take the choices. Overwrites activations
 * and gradients, also `grads`,
 * which every step writes anew. Never called during capture. */
int autotune_measure(struct tuner *t, struct layers *net, int n, float *grads,
                     struct ddp_err *err);
/* A description for the user: "9 of 12 products ..." */
void autotune_describe(const struct tuner *t, char *text, size_t size);
void autotune_free(struct tuner *t);

#endif
