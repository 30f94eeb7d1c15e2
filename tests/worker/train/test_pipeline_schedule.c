/* The micro-batches of a pipeline. */
#include "tests/support/suite.h"

#include "worker/pipeline.h"

enum { MOST = 9 };

TEST(a_batch_is_cut_evenly)
{
    for (int n = 1; n <= MOST; n++) {
        int parts = pipeline_micro_batches(n, 4);
        ck_assert_int_eq(parts, n < 4 ? n : 4);
        int next = 0;
        for (int m = 0; m < parts; m++) {
            const struct micro_batch b = pipeline_micro_batch(2, n, parts, m);
            ck_assert_int_eq(b.from, next);
            ck_assert_int_ge(b.n, n / parts);
            ck_assert_int_le(b.n, (n + parts - 1) / parts);
            ck_assert_int_eq(b.number, 2 * 64 + m);
            next += b.n;
        }
        ck_assert_int_eq(next, n);
    }
}
