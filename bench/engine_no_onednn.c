/* bench/engine_no_onednn.c - compiled where there is no oneDNN */
#include "bench/engines.h"

bool use_onednn(struct kernels *k)
{
    return false;
}
