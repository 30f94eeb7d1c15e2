/* worker/cuda/nvtx.h - what the host is doing, for a profiler: NVTX ranges, with
 * --profile
 *
 * NVTX is headers alone; without a profiler that looks (nsys profile ddp-train ...) a
 * range costs a few nanoseconds. https://nvidia.github.io/NVTX/
 */
#ifndef WORKER_CUDA_NVTX_H
#define WORKER_CUDA_NVTX_H

#include "common/err.h"

#include <stdbool.h>

/* -1 with `err` when they are asked for and this build has none. */
int nvtx_check(bool wanted, struct ddp_err *err);

/* From here to nvtx_end() this thread does `what`, which is followed by a number unless
 * that is 0. They nest. Not `wanted`: nothing happens. */
void nvtx_begin(bool wanted, const char *what, unsigned long long number);
void nvtx_end(bool wanted);

#endif
