/* bench/engine_no_openblas.c - compiled where there is no OpenBLAS */
#include "bench/engines.h"

bool use_openblas(struct kernels *k)
{
    return false;
}
