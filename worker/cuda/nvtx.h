/* worker/cuda/nvtx.h - NVTX ranges of the host's work for profilers, with --profile
 *
 * NVTX consists of headers only; without a profiler attached (nsys profile ddp-train
 * ...) a range costs a few nanoseconds. https://nvidia.github.io/NVTX/
 */
#ifndef WORKER_CUDA_NVTX_H
#define WORKER_CUDA_NVTX_H

#include "common/err.h"

#include <stdbool.h>

/* Fails if ranges are wanted and this build has none. */
int nvtx_check(bool wanted, struct ddp_err *err);

/* Begins a range named `what`, followed by `number` unless that is 0; nvtx_end() ends
 * it. Ranges nest. Nothing is done if not `wanted`. */
void nvtx_begin(bool wanted, const char *what, unsigned long long number);
void nvtx_end(bool wanted);

#endif
