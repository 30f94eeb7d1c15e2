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

/* Begins a range named `what`, followed by `number` unless that is 0; nvtx_end() ends
 * it. Ranges nest. */
static inline void nvtx_begin(const char *what, unsigned long long number)
{
    char text[64];
    if (number > 0)
        snprintf(text, sizeof text, "%s %llu", what, number);
    nvtxRangePushA(number > 0 ? text : what);
}

static inline void nvtx_end(void)
{
    nvtxRangePop();
}

#endif
