/* worker/cuda/ranges.h - what the host is doing, for a profiler: NVTX ranges, with
 * --profile
 *
 * NVTX is headers alone; without a profiler that looks (nsys profile ddp-train ...) a
 * range costs a few nanoseconds. https://nvidia.github.io/NVTX/
 */
#ifndef WORKER_CUDA_RANGES_H
#define WORKER_CUDA_RANGES_H

#include "common/err.h"

#include <stdbool.h>

/* -1 with `err` when they are asked for and this build has none. */
int ranges_check(bool wanted, struct ddp_err *err);

/* From here to range_end() this thread does `what`, which is followed by a number unless
 * that is 0. They nest. Not `wanted`: nothing happens. */
void range_begin(bool wanted, const char *what, unsigned long long number);
void range_end(bool wanted);

#endif
