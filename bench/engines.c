/* bench/engines.c - see engines.h */
#include "bench/engines.h"

#include <stdio.h>
#include <string.h>

const struct kernels *bench_engine(const char *name, struct ddp_err *err)
{
    static struct kernels openblas, onednn;
    const struct kernels *best = kernels_get(NULL, PRECISION_FP32, err);
    if (name != NULL && strcmp(name, "openblas") == 0) {
        openblas = *best;
        return use_openblas(&openblas) ? &openblas : NULL;
    }
    if (name != NULL && strcmp(name, "onednn") == 0) {
        onednn = *best;
        return use_onednn(&onednn) ? &onednn : NULL;
    }
    /* "bf16", or "avx2-bf16" */
    size_t len = name ? strlen(name) : 0;
    if (len < 4 || strcmp(name + len - 4, "bf16") != 0)
        return kernels_get(name, PRECISION_FP32, err);
    char engine[32];
    snprintf(engine, sizeof(engine), "%.*s", (int)(len > 5 ? len - 5 : 0), name);
    return kernels_get(len > 5 ? engine : NULL, PRECISION_BF16, err);
}
