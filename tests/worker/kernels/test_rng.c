/* Streams of random numbers: none is drawn twice. */
#include "tests/support/suite.h"

#include "common/mem.h"
#include "common/scoped.h"
#include "worker/kernels/rng.h"

#include <stdlib.h>

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Ranks and micro-batches were added to the seed as `rank << 32` and `number << 40`: rank
 * 256 had the numbers of rank 0's second batch. */
TEST(no_two_ranks_batches_steps_or_layers_drop_alike)
{
    static const uint64_t steps[] = {0, 1, 2, 256, UINT64_C(1) << 32};
    static const uint64_t batches[] = {0, 1, 64, 256 * 64, 4095 * 64 + 63};
    enum { RANKS = 4096, LAYERS = 64 };
    static const int layers[] = {0, 1, LAYERS - 1};
    size_t n = 0;
    OWNED uint64_t *keys =
        xcalloc((size_t)RANKS * ARRAY_LEN(steps) * ARRAY_LEN(batches) * ARRAY_LEN(layers),
                sizeof *keys);
    for (int rank = 0; rank < RANKS; rank++)
        for (size_t s = 0; s < ARRAY_LEN(steps); s++)
            for (size_t b = 0; b < ARRAY_LEN(batches); b++)
                for (size_t l = 0; l < ARRAY_LEN(layers); l++)
                    keys[n++] =
                        dropout_key(dropout_seed(1, steps[s]),
                                    dropout_draw(rank) + batches[b], layers[l], LAYERS);
    qsort(keys, n, sizeof *keys, compare);
    for (size_t i = 1; i < n; i++)
        ck_assert_uint_ne(keys[i - 1], keys[i]);
}
