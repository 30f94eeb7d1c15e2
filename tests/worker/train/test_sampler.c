#include "tests/support/suite.h"

#include "common/mem.h"
#include "worker/data/sampler.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    uint32_t n;
    int size, batch;
} shapes[] = {
    {1, 1, 1},     {1, 3, 4},   {10, 2, 3},    {64, 2, 32},  {65, 2, 32}, {63, 4, 16},
    {1438, 2, 32}, {359, 7, 5}, {100, 1, 200}, {1000, 8, 1}, {17, 5, 2},
};

LOOP_TEST(every_sample_is_seen_once_in_an_epoch, ARRAY_LEN(shapes))
{
    uint32_t n = shapes[_i].n;
    int size = shapes[_i].size, batch = shapes[_i].batch;
    int *seen = xcalloc(n, sizeof *seen);
    size_t steps[8] = {0};
    for (int rank = 0; rank < size; rank++) {
        struct sampler s;
        sampler_init(&s, n, rank, size, batch, 7);
        sampler_start(&s, 3, 0);
        int mine, all, before = 0, share[2], step[2];
        sampler_shares(&s, share, step);
        while ((all = sampler_next(&s, &mine)) > 0) {
            if (steps[rank] == 0) {
                ck_assert_int_eq(mine, share[0]);
                ck_assert_int_eq(all, step[0]);
            }
            before = mine;
            ck_assert_int_le(mine, batch);
            /* Ranks differ by at most one, the lower ones have more. */
            ck_assert_int_eq(mine, (all + size - 1 - rank) / size);
            for (int i = 0; i < mine; i++)
                seen[s.picked[i]]++;
            steps[rank]++;
        }
        ck_assert_int_eq(before, share[1]);
        ck_assert_uint_eq(steps[rank],
                          (n + (size_t)(size * batch) - 1) / (size_t)(size * batch));
        sampler_finish(&s);
    }
    for (uint32_t i = 0; i < n; i++)
        ck_assert_int_eq(seen[i], 1);
    free(seen);
}

TEST(two_ranks_see_at_a_step_what_one_sees_with_twice_the_batch)
{
    struct sampler one, two[2];
    sampler_init(&one, 150, 0, 1, 64, 1);
    sampler_start(&one, 1, 0);
    for (int r = 0; r < 2; r++) {
        sampler_init(&two[r], 150, r, 2, 32, 1);
        sampler_start(&two[r], 1, 0);
    }
    for (int step = 0; step < 3; step++) {
        int n, mine[2];
        sampler_next(&one, &n);
        sampler_next(&two[0], &mine[0]);
        sampler_next(&two[1], &mine[1]);
        ck_assert_int_eq(mine[0] + mine[1], n);
        for (int i = 0; i < n; i++)
            ck_assert_uint_eq(one.picked[i], two[i % 2].picked[i / 2]);
    }
    sampler_finish(&one);
    sampler_finish(&two[0]);
    sampler_finish(&two[1]);
}

TEST(epochs_and_seeds_shuffle_differently_and_repeatably)
{
    static const struct {
        uint64_t seed;
        int epoch;
        int same;
    } runs[] = {{1, 1, 1}, {1, 2, 0}, {2, 1, 0}};
    struct sampler a, b;
    sampler_init(&a, 1000, 0, 1, 1000, 1);
    sampler_start(&a, 1, 0);
    for (size_t i = 0; i < ARRAY_LEN(runs); i++) {
        sampler_init(&b, 1000, 0, 1, 1000, runs[i].seed);
        sampler_start(&b, runs[i].epoch, 0);
        ck_assert_int_eq(memcmp(a.order, b.order, 1000 * sizeof *a.order) == 0,
                         runs[i].same);
        sampler_finish(&b);
    }
    sampler_finish(&a);
}

TEST(an_epoch_goes_on_where_it_was_left)
{
    struct sampler a, b;
    sampler_init(&a, 100, 1, 2, 8, 5);
    sampler_init(&b, 100, 1, 2, 8, 5);
    sampler_start(&a, 4, 0);
    int mine, again;
    for (int i = 0; i < 3; i++)
        sampler_next(&a, &mine);
    sampler_start(&b, 4, a.position);
    while (sampler_next(&a, &mine) > 0) {
        sampler_next(&b, &again);
        ck_assert_int_eq(mine, again);
        ck_assert_mem_eq(a.picked, b.picked, (size_t)mine * sizeof *a.picked);
    }
    ck_assert_int_eq(sampler_next(&b, &again), 0);
    sampler_finish(&a);
    sampler_finish(&b);
}

LOOP_TEST(shares_of_the_test_set_are_disjoint_and_complete, ARRAY_LEN(shapes))
{
    uint32_t n = shapes[_i].n, next = 0;
    for (int rank = 0; rank < shapes[_i].size; rank++) {
        uint32_t first, count = sampler_share(n, rank, shapes[_i].size, &first);
        ck_assert_uint_eq(first, next);
        next += count;
    }
    ck_assert_uint_eq(next, n);
}
