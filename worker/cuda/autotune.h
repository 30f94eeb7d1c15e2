/* worker/cuda/autotune.h - the fastest algorithm of each product, found by measuring
 *
 * Before a step is recorded each product of its layers is played with every algorithm
 * that its library has to offer, on the net's own buffers, as a graph. The fastest one is
 * taken, if it is faster than the library's own choice by more than what measuring is off
 * by. One whose answer is not the usual one's, but for the rounding of the precision, is
 * left out and named; one that cannot be built, fails, or cannot be recorded is no
 * candidate.
 *
 * What is measured is a product that is played again and again: its operands are in the
 * device's caches more often than in a step.
 *
 * Choosing is for one rank to do and for all to follow: measure on one, then try and take
 * on every rank. Nothing of it is done in a recording.
 */
#ifndef WORKER_CUDA_AUTOTUNE_H
#define WORKER_CUDA_AUTOTUNE_H

#include "common/strv.h"
#include "worker/cuda/autotune_table.h"
#include "worker/cuda/layers.h"

#include <stdint.h>

struct tuner {
    struct autotune_table choices;
    int64_t most_ns, spent_ns; /* of measuring */
    /* Products that were to be measured; what is played otherwise now, and by which
     * interface; those of which not all candidates were tried, for want of time. */
    int products, changed, by_graph, in_vain;
    int lacking;          /* choices that some rank could not build */
    double usual_us, us;  /* of all that were measured: the usual ones, the chosen ones */
    struct strv warnings; /* a line each */
    bool taken_over;      /* choices of an earlier run were there */
};

/* `text`, AUTOTUNE_HEADER bytes: what names of algorithms hang on here. */
int autotune_header(char *text, struct ddp_err *err);

/* Choose for those of the net's products of n samples that have no choice yet. Writes
 * over activations and gradients, `grads` too, which every step writes anew. */
int autotune_measure(struct tuner *t, struct layers *net, int n, float *grads,
                     struct ddp_err *err);
/* Build what has been chosen for the net's products of n samples; fails[i] becomes 1
 * where choice i cannot be had here. */
int autotune_try(const struct tuner *t, struct layers *net, int n, uint8_t *fails,
                 struct ddp_err *err);
/* Choice i is the usual one again. */
void autotune_drop(struct tuner *t, size_t i);
/* The net's plans, present and later ones, go by the choices. */
void autotune_take(const struct tuner *t, struct layers *net);
/* For a person: "9 of 12 products ..." */
void autotune_describe(const struct tuner *t, char *text, size_t size);
void autotune_free(struct tuner *t);

#endif
