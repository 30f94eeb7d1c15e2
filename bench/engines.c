/* bench/engines.c - see engines.h */
#include "bench/engines.h"

#include <string.h>

const struct kernels *bench_engine(const char *name, struct ddp_err *err)
{
    static struct kernels openblas, onednn;
    const struct kernels *best = kernels_get(NULL, err);
    if (name != NULL && strcmp(name, "openblas") == 0) {
        openblas = *best;
        return use_openblas(&openblas) ? &openblas : NULL;
    }
    if (name != NULL && strcmp(name, "onednn") == 0) {
        onednn = *best;
        return use_onednn(&onednn) ? &onednn : NULL;
    }
    return kernels_get(name, err);
}
