/* worker/kernels/engines.h - the engines of this build: fp32, then bf16, fastest first
 *
 * One of engines_x86.c and engines_any.c is compiled, whichever suits the processor that
 * the build is for.
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
