/* The order of steps in a pipeline: each is taken, in an order in which no stage waits
 * for ever, and no stage has more in flight than its limit. */
#include "tests/support/suite.h"

#include "worker/pipeline_schedule.h"

enum { MOST = 9, STAGES = 4 };

/* Take turns as they become possible; returns how many were. */
static int walk(int stages, int n)
{
    int forth[STAGES] = {0}, back[STAGES] = {0}, taken = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (int s = 0; s < stages; s++) {
            int k = forth[s] + back[s];
            if (k == 2 * n)
                continue;
            struct pipeline_step t = pipeline_step_at(s, stages, n, k);
            bool can =
                t.back ? forth[s] > t.micro && (s == stages - 1 || back[s + 1] > t.micro)
                       : s == 0 || forth[s - 1] > t.micro;
            if (!can)
                continue;
            ck_assert_int_eq(t.micro, t.back ? back[s] : forth[s]);
            (t.back ? back : forth)[s]++;
            ck_assert_int_le(forth[s] - back[s], stages - s);
            taken++;
            moved = true;
        }
    }
    return taken;
}

TEST(every_schedule_ends)
{
    for (int stages = 1; stages <= STAGES; stages++)
        for (int n = 1; n <= MOST; n++)
            ck_assert_int_eq(walk(stages, n), 2 * n * stages);
}

TEST(the_last_stage_turns_round_at_once)
{
    for (int k = 0; k < 2 * MOST; k++) {
        struct pipeline_step t =
            pipeline_step_at(PIPELINE_STAGES - 1, PIPELINE_STAGES, MOST, k);
        ck_assert_int_eq(t.back, k % 2);
        ck_assert_int_eq(t.micro, k / 2);
    }
}

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
            ck_assert_int_eq(b.number, 2 + 256 * m);
            next += b.n;
        }
        ck_assert_int_eq(next, n);
    }
}
