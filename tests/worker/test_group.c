/* Every collective of a process group against a plain sum: by operation, type, size,
 * number of ranks, and way of being laid out over hosts. */
#include "tests/support/suite.h"
#include "tests/worker/team.h"

#include "common/mem.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct team teams[] = {
    {.size = 1},
    {.size = 2},
    {.size = 3},
    {.size = 4},
    {.size = 5},
    {.size = 6},
    {.size = 7},
    {.size = 8},
    {.size = 2, .backend = "tcp"},
    {.size = 3, .backend = "tcp"},
    {.size = 4, .backend = "tcp"},
    {.size = 5, .backend = "tcp"},
    {.size = 6, .backend = "tcp"},
    {.size = 7, .backend = "tcp"},
    {.size = 8, .backend = "tcp"},
    {.size = 3, .layout = "aab"},
    {.size = 4, .layout = "aabb"},
    {.size = 4, .layout = "abab"},
    {.size = 6, .layout = "abbcca"},
    {.size = 8, .layout = "aaabbbcc"},
};

/* ---- what a plain loop says ---- */

struct number {
    double f;  /* exact: all values are small */
    int64_t i; /* wraps around */
};

static int64_t value(int rank, size_t i, enum ddp_type type, enum ddp_op op)
{
    switch (op) {
    case DDP_PRODUCT:
        return (i + (size_t)rank) % 3 == 0 ? (type == DDP_U8 ? 255 : -1)
                                           : 1 + (int64_t)((i + (size_t)rank) % 2);
    case DDP_MAX:
    case DDP_MIN:
        return (int64_t)((i * 31 + (size_t)rank * 17) % 101) - (type == DDP_U8 ? 0 : 50);
    case DDP_SUM:
    case DDP_AVG:
        break;
    }
    return (int64_t)((i * 7 + (size_t)rank * 3) % 11) - (type == DDP_U8 ? 0 : 3);
}

static struct number expected(int size, size_t i, enum ddp_type type, enum ddp_op op)
{
    int64_t all = value(0, i, type, op);
    for (int r = 1; r < size; r++) {
        int64_t v = value(r, i, type, op);
        if (op == DDP_PRODUCT)
            all *= v;
        else if (op == DDP_MAX)
            all = v > all ? v : all;
        else if (op == DDP_MIN)
            all = v < all ? v : all;
        else
            all += v;
    }
    struct number n = {.f = (double)all, .i = type == DDP_U8 ? all & 255 : all};
    if (op == DDP_AVG) {
        n.f = type == DDP_F32 ? (double)((float)all / (float)size)
                              : (double)all / (double)size;
        n.i /= size;
    }
    return n;
}

static const size_t sizes_of[] = {
    [DDP_F32] = 4, [DDP_F64] = 8, [DDP_I32] = 4, [DDP_I64] = 8, [DDP_U8] = 1};

static void put(void *data, size_t i, enum ddp_type type, int64_t v)
{
    switch (type) {
    case DDP_F32:
        ((float *)data)[i] = (float)v;
        break;
    case DDP_F64:
        ((double *)data)[i] = (double)v;
        break;
    case DDP_I32:
        ((int32_t *)data)[i] = (int32_t)v;
        break;
    case DDP_I64:
        ((int64_t *)data)[i] = v;
        break;
    case DDP_U8:
        ((uint8_t *)data)[i] = (uint8_t)v;
        break;
    }
}

static bool same(const void *data, size_t i, enum ddp_type type, struct number n)
{
    switch (type) {
    case DDP_F32:
        return (double)((const float *)data)[i] == n.f;
    case DDP_F64:
        return ((const double *)data)[i] == n.f;
    case DDP_I32:
        return ((const int32_t *)data)[i] == n.i;
    case DDP_I64:
        return ((const int64_t *)data)[i] == n.i;
    case DDP_U8:
        return ((const uint8_t *)data)[i] == n.i;
    }
    return false;
}

static void fill(void *data, size_t n, size_t first, int rank, enum ddp_type type,
                 enum ddp_op op)
{
    for (size_t i = 0; i < n; i++)
        put(data, i, type, value(rank, first + i, type, op));
}

/* ---- one case ---- */

struct args {
    enum ddp_type type;
    enum ddp_op op;
    size_t count;
    bool arena;
    char *a, *b; /* room for size * count elements each */
};

static void check_reduced(struct ddp_group *g, const char *what, const struct args *x,
                          const void *data, size_t first)
{
    for (size_t i = 0; i < x->count; i++)
        team_check(g,
                   same(data, i, x->type,
                        expected(ddp_group_size(g), first + i, x->type, x->op)),
                   "%s: type %d, op %d, %zu elements%s: element %zu is wrong", what,
                   (int)x->type, (int)x->op, x->count, x->arena ? " in the arena" : "",
                   i);
}

static void reduce_case(struct ddp_group *g, const struct args *x)
{
    struct ddp_err err = {""};
    int rank = ddp_group_rank(g), size = ddp_group_size(g);
    fill(x->a, x->count, 0, rank, x->type, x->op);
    team_check(g, ddp_all_reduce(g, x->a, x->count, x->type, x->op, &err) == 0, "%s",
               err.text);
    check_reduced(g, "all_reduce", x, x->a, 0);

    fill(x->a, x->count, 0, rank, x->type, x->op);
    struct ddp_request *r = ddp_iall_reduce(g, x->a, x->count, x->type, x->op, &err);
    team_check(g, r, "%s", err.text);
    team_check(g, ddp_wait(r, &err) == 0, "%s", err.text);
    check_reduced(g, "iall_reduce", x, x->a, 0);

    fill(x->a, x->count * (size_t)size, 0, rank, x->type, x->op);
    team_check(g, ddp_reduce_scatter(g, x->a, x->b, x->count, x->type, x->op, &err) == 0,
               "%s", err.text);
    check_reduced(g, "reduce_scatter", x, x->b, (size_t)rank * x->count);
    void *own = x->a + (size_t)rank * x->count * sizes_of[x->type];
    team_check(g, ddp_reduce_scatter(g, x->a, own, x->count, x->type, x->op, &err) == 0,
               "%s", err.text);
    check_reduced(g, "reduce_scatter in place", x, own, (size_t)rank * x->count);
}

static void copy_case(struct ddp_group *g, const struct args *x)
{
    struct ddp_err err = {""};
    int rank = ddp_group_rank(g), size = ddp_group_size(g);
    size_t bytes = x->count * sizes_of[x->type];
    for (int root = 0; root < size; root++) {
        fill(x->a, x->count, 0, rank, x->type, DDP_SUM);
        team_check(g, ddp_broadcast(g, x->a, x->count, x->type, root, &err) == 0, "%s",
                   err.text);
        fill(x->b, x->count, 0, root, x->type, DDP_SUM);
        team_check(g, memcmp(x->a, x->b, bytes) == 0,
                   "broadcast of %zu bytes from %d is wrong", bytes, root);
    }
    fill(x->a, x->count, 0, rank, x->type, DDP_SUM);
    memset(x->b, 0x55, bytes * (size_t)size);
    team_check(g, ddp_all_gather(g, x->a, x->b, x->count, x->type, &err) == 0, "%s",
               err.text);
    if (x->count % 2) { /* again, with the contribution in its place */
        memset(x->b, 0x55, bytes * (size_t)size);
        memcpy(x->b + (size_t)rank * bytes, x->a, bytes);
        team_check(g,
                   ddp_all_gather(g, x->b + (size_t)rank * bytes, x->b, x->count, x->type,
                                  &err) == 0,
                   "%s", err.text);
    }
    for (int r = 0; r < size; r++) {
        fill(x->a, x->count, 0, r, x->type, DDP_SUM);
        team_check(g, memcmp(x->a, x->b + (size_t)r * bytes, bytes) == 0,
                   "all_gather of %zu bytes: block %d is wrong", bytes, r);
    }
}

/* ---- all cases ---- */

static void small_cases(struct ddp_group *g, struct args *x)
{
    static const size_t counts[] = {0, 1, 7, 333, 2999};
    for (size_t c = 0; c < ARRAY_LEN(counts); c++) {
        x->count = counts[c];
        for (x->type = DDP_F32; x->type <= DDP_U8; x->type++) {
            for (x->op = DDP_SUM; x->op <= DDP_AVG; x->op++)
                reduce_case(g, x);
            copy_case(g, x);
        }
    }
}

/* Many chunks, the last one odd; the longest is more than one chunk between hosts. */
static void large_cases(struct ddp_group *g, struct args *x)
{
    static const struct {
        enum ddp_type type;
        enum ddp_op op;
        size_t count;
    } cases[] = {{DDP_F32, DDP_SUM, 100003},
                 {DDP_F64, DDP_AVG, 20011},
                 {DDP_U8, DDP_MAX, 150001},
                 {DDP_I64, DDP_PRODUCT, 40009}};
    for (size_t c = 0; c < ARRAY_LEN(cases); c++) {
        x->type = cases[c].type;
        x->op = cases[c].op;
        x->count = cases[c].count;
        reduce_case(g, x);
        copy_case(g, x);
    }
    x->type = DDP_F32;
    x->op = DDP_SUM;
    x->count = 1200007;
    struct ddp_err err = {""};
    fill(x->a, x->count, 0, ddp_group_rank(g), x->type, x->op);
    team_check(g, ddp_all_reduce(g, x->a, x->count, x->type, x->op, &err) == 0, "%s",
               err.text);
    check_reduced(g, "all_reduce", x, x->a, 0);
    fill(x->a, x->count, 0, ddp_group_rank(g), x->type, x->op);
    team_check(
        g, ddp_broadcast(g, x->a, x->count, x->type, 1 % ddp_group_size(g), &err) == 0,
        "%s", err.text);
    fill(x->b, x->count, 0, 1 % ddp_group_size(g), x->type, x->op);
    team_check(g, memcmp(x->a, x->b, x->count * 4) == 0, "a long broadcast is wrong");
}

enum { ROOM = 6 << 20 };

static void all_cases(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    struct args x = {.a = malloc(ROOM), .b = malloc(ROOM)};
    team_check(g, ddp_barrier(g, &err) == 0, "%s", err.text);
    small_cases(g, &x);
    large_cases(g, &x);
    free(x.a);
    free(x.b);
    x.arena = true;
    x.a = ddp_arena_alloc(g, ROOM, &err);
    team_check(g, x.a, "%s", err.text);
    x.b = ddp_arena_alloc(g, ROOM, &err);
    team_check(g, x.b, "%s", err.text);
    large_cases(g, &x);
    x.a += 4; /* need not be aligned to more than an element */
    x.type = DDP_F32;
    x.op = DDP_AVG;
    x.count = 9999;
    reduce_case(g, &x);
    team_check(g, ddp_barrier(g, &err) == 0, "%s", err.text);
}

START_TEST(collectives_agree_with_a_plain_sum)
{
    team_run(&teams[_i], all_cases, NULL);
}
END_TEST

/* Numbers whose sum depends on the order, some in the arena and some not. */
static void bits_case(struct ddp_group *g, const void *arg)
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
        team_check(g, ddp_all_reduce(g, x, COUNT, DDP_F32, DDP_SUM, &err) == 0, "%s",
                   err.text);
        if (round == 0)
            memcpy(first, x, COUNT * sizeof(float));
        team_check(g, memcmp(first, x, COUNT * sizeof(float)) == 0,
                   "round %d has other bits", round);
        team_check(g, ddp_all_gather(g, x, all, COUNT, DDP_F32, &err) == 0, "%s",
                   err.text);
        for (int r = 0; r < size; r++)
            team_check(g, memcmp(all + (size_t)r * COUNT, x, COUNT * sizeof(float)) == 0,
                       "rank %d has other bits", r);
    }
    free(own);
    free(first);
    free(all);
}

START_TEST(every_rank_and_every_run_has_the_same_bits)
{
    team_run(&teams[_i], bits_case, NULL);
}
END_TEST

/* Several at once; started in one order, waited for in another. */
static void overlap_case(struct ddp_group *g, const void *arg)
{
    enum { N = 12, COUNT = 30000 };
    struct ddp_err err = {""};
    int rank = ddp_group_rank(g), size = ddp_group_size(g);
    float *x[N];
    struct ddp_request *r[N];
    for (int i = 0; i < N; i++) {
        x[i] = ddp_arena_alloc(g, COUNT * sizeof(float), &err);
        for (int k = 0; k < COUNT; k++)
            x[i][k] = (float)(i + rank);
        r[i] = ddp_iall_reduce(g, x[i], i == 5 ? 3 : COUNT, DDP_F32, DDP_SUM, &err);
        team_check(g, r[i], "%s", err.text);
    }
    int done = 0;
    while (!done)
        team_check(g, ddp_test(r[7], &done, &err) == 0, "%s", err.text);
    team_check(g, ddp_barrier(g, &err) == 0, "%s", err.text);
    for (int i = N - 1; i >= 0; i--) {
        float all = (float)(size * i + size * (size - 1) / 2);
        team_check(g, i == 7 || ddp_wait(r[i], &err) == 0, "%s", err.text);
        team_check(g, x[i][2] == all, "sum %d is %g, not %g", i, (double)x[i][2],
                   (double)all);
        team_check(g, x[i][COUNT - 1] == (i == 5 ? (float)(i + rank) : all),
                   "sum %d is wrong at the end", i);
    }
    /* what nobody waits for goes with the group */
    team_check(g, ddp_irecv(g, x[0], 4, (rank + 1) % size, 9, &err), "%s", err.text);
}

START_TEST(several_are_under_way_at_once)
{
    team_run(&teams[_i], overlap_case, NULL);
}
END_TEST

Suite *suite(void)
{
    Suite *s = suite_create("group");
    TCase *t = tcase_create("group");
    tcase_set_timeout(t, 250);
    tcase_add_loop_test(t, collectives_agree_with_a_plain_sum, 0, ARRAY_LEN(teams));
    tcase_add_loop_test(t, every_rank_and_every_run_has_the_same_bits, 0,
                        ARRAY_LEN(teams));
    tcase_add_loop_test(t, several_are_under_way_at_once, 0, ARRAY_LEN(teams));
    suite_add_tcase(s, t);
    return s;
}
