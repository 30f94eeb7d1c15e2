/* worker/ddp/bucket.c - see bucket.h */
#include "worker/ddp/bucket.h"

#include <stdbool.h>

/* Is params[i] part of a convolution? A bias has the kind of the weight before it. */
static bool of_convolution(const struct param *params, size_t i)
{
    while (i > 0 && params[i].ndim == 1)
        i--;
    return params[i].ndim == 4;
}

size_t bucket_plan(const struct param *params, size_t n, size_t first, size_t cap,
                   struct bucket *out)
{
    size_t nbuckets = 0, gathered = 0;
    for (size_t i = n; i-- > 0;) {
        gathered += params[i].count;
        /* A layer's gradients become final together, the weight's with the bias's: only a
         * weight, which comes first in the block, ends a bucket. */
        bool whole = params[i].ndim > 1;
        bool full = gathered >= (nbuckets == 0 ? first : cap);
        bool turn = i > 0 && !of_convolution(params, i) && of_convolution(params, i - 1);
        if (i == 0 || (whole && (full || turn))) {
            out[nbuckets++] = (struct bucket){params[i].offset, gathered};
            gathered = 0;
        }
    }
    return nbuckets;
}
