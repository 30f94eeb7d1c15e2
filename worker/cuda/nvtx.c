/* worker/cuda/nvtx.c - see nvtx.h */
#include "worker/cuda/nvtx.h"

#include <stdio.h>

#ifdef HAVE_NVTX
#include <nvtx3/nvToolsExt.h>

int nvtx_check(bool wanted, struct ddp_err *err)
{
    return 0;
}

void nvtx_begin(bool wanted, const char *what, unsigned long long number)
{
    char text[64];
    if (!wanted)
        return;
    if (number > 0)
        snprintf(text, sizeof text, "%s %llu", what, number);
    nvtxRangePushA(number > 0 ? text : what);
}

void nvtx_end(bool wanted)
{
    if (wanted)
        nvtxRangePop();
}

#else

int nvtx_check(bool wanted, struct ddp_err *err)
{
    return wanted ? err_set(err, "--profile: this build was made without NVTX's headers")
                  : 0;
}

void nvtx_begin(bool wanted, const char *what, unsigned long long number) {}

void nvtx_end(bool wanted) {}

#endif
