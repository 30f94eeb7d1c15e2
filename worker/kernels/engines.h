/* worker/kernels/engines.h - the engines of this build: fp32 first, then bf16, each
 * fastest first; in kernels.c
 */
#ifndef WORKER_KERNELS_ENGINES_H
#define WORKER_KERNELS_ENGINES_H

#include "worker/kernels/kernels.h"

struct engine {
    const struct kernels *kernels;
    bool (*runs_here)(void); /* does this CPU have the instructions? */
};

extern const struct engine engines[]; /* ends with kernels == NULL */

#endif
