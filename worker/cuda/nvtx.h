/* worker/cuda/nvtx.h - NVTX ranges of the host's work for profilers (nsys profile
 * ddp-train ...)
 *
 * NVTX consists of headers only; without a profiler attached a range costs less than a
 * microsecond. A build without the headers has none. https://nvidia.github.io/NVTX/
 */
#ifndef WORKER_CUDA_NVTX_H
#define WORKER_CUDA_NVTX_H

#include <stdio.h>

#ifdef HAVE_NVTX
#include <nvtx3/nvToolsExt.h>
#else
#define nvtxRangePushA(what) ((void)(what))
#define nvtxRangePop()       ((void)0)
#endif

static inline int nvtx_begin(const char *what, unsigned long long number)
{
    char text[64];
    if (number > 0)
        snprintf(text, sizeof text, "%s %llu", what, number);
    nvtxRangePushA(number > 0 ? text : what);
    return 0;
}

static inline void nvtx_end(const int *range)
{
    nvtxRangePop();
}

/* A range from here to the end of the block, named `what`, followed by `number` unless
 * that is 0. Ranges nest. */
#define NVTX_RANGE(what, number)                                      \
    __attribute__((cleanup(nvtx_end), unused)) const int nvtx_range = \
        nvtx_begin(what, number)

#endif
