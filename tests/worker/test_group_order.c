/* tests/worker/test_group_order.c - the order in which sums are added, and that it is the
 * same on all ranks and in all runs
 */
#define CASE_SECONDS 250
#include "tests/support/suite.h"
#include "tests/worker/team.h"

#include "common/mem.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Numbers whose sum depends on the order, some in the arena and some not. */
static void check_bits(struct ddp_group *g, const void *arg)
{
    enum { COUNT = 60013 };
    struct ddp_err err = {""};
    int rank = ddp_group_rank(g), size = ddp_group_size(g);
    float *shared = ddp_arena_alloc(g, COUNT * sizeof(float), &err);
    float *own = malloc(COUNT * sizeof(float)), *first = malloc(COUNT * sizeof(float));
    float *all = malloc((size_t)size * COUNT * sizeof(float));
    for (int round = 0; round < 4; round++) {
        float *x = round % 2 && rank % 2 ? own : shared;
        srand48(rank + 1);
        for (int i = 0; i < COUNT; i++)
            x[i] = (float)((drand48() - 0.5) * (i % 3 ? 1.0 : 1e5));
        team_assert(g, ddp_all_reduce(g, x, COUNT, DDP_F32, DDP_SUM, &err) == 0, "%s",
                    err.text);
        if (round == 0)
            memcpy(first, x, COUNT * sizeof(float));
        team_assert(g, memcmp(first, x, COUNT * sizeof(float)) == 0,
                    "round %d has other bits", round);
        team_assert(g, ddp_all_gather(g, x, all, COUNT, DDP_F32, &err) == 0, "%s",
                    err.text);
        for (int r = 0; r < size; r++)
            team_assert(g, memcmp(all + (size_t)r * COUNT, x, COUNT * sizeof(float)) == 0,
                        "rank %d has other bits", r);
    }
    free(own);
    free(first);
    free(all);
}

LOOP_TEST(every_rank_and_every_run_has_the_same_bits, TEAM_LAYOUTS)
{
    assert_team(&team_layouts[_i], check_bits, NULL);
}

/* A rank's number, whose sums depend on the order. */
static float rough(int rank, size_t i)
{
    return (float)((i * 7919 + (size_t)rank * 104729) % 1000003) * (i % 3 ? 0.1F : 1e-6F);
}

/* Of all hosts' numbers: by recursive doubling, or from host `from` on around. */
static float between(float *h, int hosts, bool doubling, int from)
{
    int p = 1;
    float sum = h[from];
    for (int j = 1; j < hosts && !doubling; j++)
        sum += h[(from + j) % hosts];
    while (p * 2 <= hosts)
        p *= 2;
    for (int j = 0, extra = hosts - p; j < p; j++)
        h[j] = j < extra ? h[2 * j] + h[2 * j + 1] : h[j + extra];
    for (int bit = 1; bit < p; bit *= 2)
        for (int j = 0; j < p; j += 2 * bit)
            h[j] += h[j + bit];
    return doubling ? h[0] : sum;
}

/* In the order that group.h gives, where all ranks are on one host, or each on its own.
 */
static void check_order(struct ddp_group *g, const void *arg)
{
    static const size_t counts[] = {100, 8192, 8193, 50001};
    struct ddp_err err = {""};
    int rank = ddp_group_rank(g), size = ddp_group_size(g), root = size / 2;
    bool apart = strcmp(ddp_group_backend(g), "tcp") == 0;
    for (size_t k = 0; k < 2 * ARRAY_LEN(counts); k++) {
        size_t n = counts[k / 2], each = n / (size_t)size, more = n % (size_t)size;
        bool doubling = n * sizeof(float) <= (size == 2 ? 131072 : 32768);
        float *x = malloc(n * sizeof *x);
        for (size_t i = 0; i < n; i++)
            x[i] = rough(rank, i);
        team_ok(g, k % 2 ? ddp_reduce(g, x, x, n, DDP_F32, DDP_SUM, root, &err)
                         : ddp_all_reduce(g, x, n, DDP_F32, DDP_SUM, &err));
        for (size_t i = 0; i < n && (k % 2 == 0 || rank == root); i++) {
            float h[8], sum = 0;
            size_t longer = more * (each + 1);
            int slice = (int)(i < longer ? i / (each + 1) : more + (i - longer) / each);
            for (int r = 0; r < size; r++)
                sum += h[r] = rough(r, i);
            if (apart)
                sum = between(h, size, doubling, k % 2 ? (root + 1) % size : slice);
            team_assert(g, x[i] == sum, "%zu of %zu: %.9g, not %.9g", i, n, (double)x[i],
                        (double)sum);
        }
        free(x);
    }
}

LOOP_TEST(sums_are_added_in_the_order_of_the_header, 5)
{
    static const struct team of[] = {{.size = 5},
                                     {.size = 2, .backend = "tcp"},
                                     {.size = 3, .backend = "tcp"},
                                     {.size = 5, .backend = "tcp"},
                                     {.size = 7, .backend = "tcp"}};
    assert_team(&of[_i], check_order, NULL);
}
