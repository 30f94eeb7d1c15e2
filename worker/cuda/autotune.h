/* worker/cuda/autotune.h - the fastest algorithm for each product, by measurement
 *
 * Every algorithm that the library offers for a product, and that the numerical notes
 * allow, is timed on the net's own buffers, captured as in a step. The fastest is chosen
 * if its gain exceeds the error of the measurement. One that cannot be built, captured
 * or executed is skipped. As in PyTorch's benchmark mode, results are not compared.
 *
 * The product runs repeatedly when it is timed, so its operands are in cache more
 * often than in a step.
 *
 * autotune_ranks.c has the choices for all ranks and for later runs.
 */
#ifndef WORKER_CUDA_AUTOTUNE_H
#define WORKER_CUDA_AUTOTUNE_H

#include "worker/cuda/layers.h"

#include <stdint.h>

struct tuner {
    /* Owned: as layers_choose() takes them, of this run and of earlier ones; also for
     * products that the net does not have. NULL: none. */
    char *choices;
    int64_t left_ns; /* of the time for measuring */
    /* Numbers of products: measured; of these with a choice other than the default; not
     * measured for lack of time, which keep the default. */
    int measured, changed, late;
    double usual_us, us; /* sums over the measured products: default, chosen */
};

/* Chooses for the net's products of n samples that have no choice yet; layers_choose()
 * makes the net take the choices. Overwrites activations and gradients, also `grads`,
 * which every step writes anew. Never called during capture. */
void autotune_measure(struct tuner *t, struct layers *net, int n, float *grads);
/* A description for the user: "9 of 12 products ..."; the caller frees. */
char *autotune_describe(const struct tuner *t);

#endif
