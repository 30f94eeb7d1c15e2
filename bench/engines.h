/* bench/engines.h - the worker's engines, and what they are measured beside
 *
 * "openblas" (im2col and sgemm) and "onednn" (its convolutions and inner products, in the
 * layouts that it prefers) are engines like any other, but only here: see bench/README.md
 * for why the worker links neither. They take whole batches as planned, one thread.
 */
#ifndef BENCH_ENGINES_H
#define BENCH_ENGINES_H

#include "worker/kernels/kernels.h"

/* As kernels_get(), of those too; "bf16" and "avx2-bf16" are engines of that precision.
 * What a library lacks is the worker's fastest. */
const struct kernels *bench_engine(const char *name, struct ddp_err *err);

/* Put the library's layers into the table; false in builds without the library. */
bool use_openblas(struct kernels *k);
bool use_onednn(struct kernels *k);

/* The layers are functions of one file, with the names of their members. */
#define TAKE_LAYERS(k)                  \
    do {                                \
        (k)->linear_plan = linear_plan; \
        (k)->linear = linear;           \
        (k)->linear_back = linear_back; \
        (k)->conv_plan = conv_plan;     \
        (k)->conv_floats = conv_floats; \
        (k)->conv = conv;               \
        (k)->conv_back = conv_back;     \
    } while (0)

#endif
