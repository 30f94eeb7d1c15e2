/* Every collective of a process group against a plain sum: by operation, type, size,
 * number of ranks, and way of being laid out over hosts. */
#define CASE_SECONDS 250
#include "tests/support/suite.h"
#include "tests/worker/team.h"

#include "common/mem.h"
#include "worker/group/half.h"
#include "worker/group/reduce.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what a plain loop says ---- */

struct number {
    double f;  /* exact: all values are small */
    int64_t i; /* wraps around */
};

static bool is_unsigned(enum ddp_type type)
{
    return type == DDP_U8;
}

static bool is_float(enum ddp_type type)
{
    return type == DDP_F32 || type == DDP_F64 || type == DDP_F16 || type == DDP_BF16;
}

/* What ranks give repeats: elements of the first period are set and checked one by one,
 * and those behind them are copied from, or compared with, those one period before. */
enum { PERIOD = 101 * 11 * 6, BLOCK_PERIOD = 23 };

static int64_t value(int rank, size_t i, enum ddp_type type, enum ddp_op op)
{
    int64_t mixed = (int64_t)((i * 31 + (size_t)rank * 17) % 101);
    if (op == DDP_PRODUCT)
        return (i + (size_t)rank) % 3 == 0 ? (is_unsigned(type) ? 255 : -1)
                                           : 1 + (int64_t)((i + (size_t)rank) % 2);
    if (op == DDP_SUM || op == DDP_AVG)
        return (int64_t)((i * 7 + (size_t)rank * 3) % 11) - (is_unsigned(type) ? 0 : 3);
    return mixed - (is_unsigned(type) ? 0 : 50);
}

static int64_t combine(int64_t a, int64_t b, enum ddp_op op)
{
    switch (op) {
    case DDP_PRODUCT:
        return a * b;
    case DDP_MAX:
        return a > b ? a : b;
    case DDP_MIN:
        return a < b ? a : b;
    case DDP_BAND:
        return a & b;
    case DDP_BOR:
        return a | b;
    case DDP_BXOR:
        return a ^ b;
    case DDP_SUM:
    case DDP_AVG:
        break;
    }
    return a + b;
}

/* As an element of this type holds it. */
static double rounded(double f, enum ddp_type type)
{
    float x = (float)f;
    uint16_t h;
    if (type == DDP_F64)
        return f;
    if (type == DDP_F16) {
        half_narrow(&h, &x, 1);
        half_widen(&x, &h, 1);
    } else if (type == DDP_BF16) {
        bf16_narrow(&h, &x, 1);
        bf16_widen(&x, &h, 1);
    }
    return (double)x;
}

static struct number expected(int size, size_t i, enum ddp_type type, enum ddp_op op)
{
    int64_t all = value(0, i, type, op);
    for (int r = 1; r < size; r++)
        all = combine(all, value(r, i, type, op), op);
    struct number n = {.f = (double)all, .i = all};
    n.i = type == DDP_U8 ? (uint8_t)all : type == DDP_I8 ? (int8_t)all : all;
    if (op == DDP_AVG) {
        n.f = type == DDP_F64 ? (double)all / (double)size
                              : (double)((float)all / (float)size);
        n.i /= size;
    }
    n.f = rounded(n.f, type);
    return n;
}

static void put(void *data, size_t i, enum ddp_type type, int64_t v)
{
    float f = (float)v;
    if (type == DDP_F32)
        ((float *)data)[i] = f;
    else if (type == DDP_F64)
        ((double *)data)[i] = (double)v;
    else if (type == DDP_F16)
        half_narrow((uint16_t *)data + i, &f, 1);
    else if (type == DDP_BF16)
        bf16_narrow((uint16_t *)data + i, &f, 1);
    else /* little-endian: the low bytes */
        memcpy((char *)data + i * type_size(type), &v, type_size(type));
}

static bool same(const void *data, size_t i, enum ddp_type type, struct number n)
{
    float f;
    size_t size = type_size(type);
    if (type == DDP_F32)
        return (double)((const float *)data)[i] == n.f;
    if (type == DDP_F64)
        return ((const double *)data)[i] == n.f;
    if (type == DDP_F16)
        half_widen(&f, (const uint16_t *)data + i, 1);
    else if (type == DDP_BF16)
        bf16_widen(&f, (const uint16_t *)data + i, 1);
    else
        return memcmp((const char *)data + i * size, &n.i, size) == 0;
    return (double)f == n.f;
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Elements from `period` on, of which the first have been set. */
static void repeat(char *data, size_t n, size_t period, enum ddp_type type)
{
    size_t size = type_size(type);
    for (size_t at = period; at < n; at *= 2)
        memcpy(data + at * size, data, smaller(at, n - at) * size);
}

static bool repeats(const char *data, size_t n, size_t period, enum ddp_type type)
{
    size_t size = type_size(type);
    return n <= period || memcmp(data + period * size, data, (n - period) * size) == 0;
}

static void fill(void *data, size_t n, size_t first, int rank, enum ddp_type type,
                 enum ddp_op op)
{
    for (size_t i = 0; i < smaller(n, PERIOD); i++)
        put(data, i, type, value(rank, first + i, type, op));
    repeat(data, n, PERIOD, type);
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
    const char *where = x->arena ? " in the arena" : "";
    for (size_t i = 0; i < smaller(x->count, PERIOD); i++)
        team_assert(g,
                    same(data, i, x->type,
                         expected(ddp_group_size(g), first + i, x->type, x->op)),
                    "%s: type %d, op %d, %zu elements%s: element %zu is wrong", what,
                    (int)x->type, (int)x->op, x->count, where, i);
    team_assert(g, repeats(data, x->count, PERIOD, x->type),
                "%s: type %d, op %d, %zu elements%s: one from element %d on is wrong",
                what, (int)x->type, (int)x->op, x->count, where, PERIOD);
}

/* Blocks of different sizes, some of them empty, none of them longer than `count`.
 * Returns where the block of `rank` begins. */
static size_t uneven(size_t *counts, size_t count, int size, int rank, int shift)
{
    size_t at = 0;
    for (int r = 0; r < size; r++) {
        size_t k = (size_t)(r + shift) % 3;
        counts[r] = k == 0 ? count : k == 1 ? count / 3 : 0;
        at += r < rank ? counts[r] : 0;
    }
    return at;
}

static void check_reductions(struct ddp_group *g, const struct args *x)
{
    struct ddp_err err = {""};
    int rank = ddp_group_rank(g), size = ddp_group_size(g);
    fill(x->a, x->count, 0, rank, x->type, x->op);
    team_assert(g, ddp_all_reduce(g, x->a, x->count, x->type, x->op, &err) == 0, "%s",
                err.text);
    check_reduced(g, "all_reduce", x, x->a, 0);

    fill(x->a, x->count, 0, rank, x->type, x->op);
    struct ddp_request *r = ddp_iall_reduce(g, x->a, x->count, x->type, x->op, &err);
    team_assert(g, r, "%s", err.text);
    team_assert(g, ddp_wait(r, &err) == 0, "%s", err.text);
    check_reduced(g, "iall_reduce", x, x->a, 0);

    fill(x->a, x->count * (size_t)size, 0, rank, x->type, x->op);
    team_assert(g, ddp_reduce_scatter(g, x->a, x->b, x->count, x->type, x->op, &err) == 0,
                "%s", err.text);
    check_reduced(g, "reduce_scatter", x, x->b, (size_t)rank * x->count);
    void *own = x->a + (size_t)rank * x->count * type_size(x->type);
    team_assert(g, ddp_reduce_scatter(g, x->a, own, x->count, x->type, x->op, &err) == 0,
                "%s", err.text);
    check_reduced(g, "reduce_scatter in place", x, own, (size_t)rank * x->count);

    int root = (int)(x->count + x->op) % size;
    fill(x->a, x->count, 0, rank, x->type, x->op);
    team_ok(g, ddp_reduce(g, x->a, rank == root ? x->b : NULL, x->count, x->type, x->op,
                          root, &err));
    if (rank == root)
        check_reduced(g, "reduce", x, x->b, 0);
    team_ok(g, ddp_reduce(g, x->a, x->a, x->count, x->type, x->op, root, &err));
    if (rank == root)
        check_reduced(g, "reduce in place", x, x->a, 0);
    size_t counts[8], at = uneven(counts, x->count, size, rank, 0);
    fill(x->a, x->count * (size_t)size, 0, rank, x->type, x->op);
    team_ok(g, ddp_reduce_scatterv(g, x->a, x->b, counts, x->type, x->op, &err));
    struct args part = *x;
    part.count = counts[rank];
    check_reduced(g, "reduce_scatterv", &part, x->b, at);
}

static void check_copies(struct ddp_group *g, const struct args *x)
{
    struct ddp_err err = {""};
    int rank = ddp_group_rank(g), size = ddp_group_size(g);
    size_t bytes = x->count * type_size(x->type);
    for (int root = 0; root<size; root += x->count> 3000 ? 3 : 1) {
        fill(x->a, x->count, 0, rank, x->type, DDP_SUM);
        team_assert(g, ddp_broadcast(g, x->a, x->count, x->type, root, &err) == 0, "%s",
                    err.text);
        fill(x->b, x->count, 0, root, x->type, DDP_SUM);
        team_assert(g, memcmp(x->a, x->b, bytes) == 0,
                    "broadcast of %zu bytes from %d is wrong", bytes, root);
    }
    fill(x->a, x->count, 0, rank, x->type, DDP_SUM);
    memset(x->b, 0x55, bytes * (size_t)size);
    team_assert(g, ddp_all_gather(g, x->a, x->b, x->count, x->type, &err) == 0, "%s",
                err.text);
    if (x->count % 2) { /* again, with the contribution in its place */
        memset(x->b, 0x55, bytes * (size_t)size);
        memcpy(x->b + (size_t)rank * bytes, x->a, bytes);
        team_assert(g,
                    ddp_all_gather(g, x->b + (size_t)rank * bytes, x->b, x->count,
                                   x->type, &err) == 0,
                    "%s", err.text);
    }
    for (int r = 0; r < size; r++) {
        fill(x->a, x->count, 0, r, x->type, DDP_SUM);
        team_assert(g, memcmp(x->a, x->b + (size_t)r * bytes, bytes) == 0,
                    "all_gather of %zu bytes: block %d is wrong", bytes, r);
    }
}

/* Blocks that are only moved: element j of what rank a gives to rank b is (a, b, j). */
static void fill_block(const struct args *x, char *to, size_t n, int from, int dest)
{
    for (size_t j = 0; j < smaller(n, BLOCK_PERIOD); j++)
        put(to, j, x->type, (int64_t)((size_t)(from * 8 + dest) * 5 + j) % 100);
    repeat(to, n, BLOCK_PERIOD, x->type);
}

static void check_block(struct ddp_group *g, const char *what, const struct args *x,
                        const char *data, size_t n, int from, int dest)
{
    const char *where = x->arena ? " in the arena" : "";
    for (size_t j = 0; j < smaller(n, BLOCK_PERIOD); j++) {
        struct number e = {.i = (int64_t)((size_t)(from * 8 + dest) * 5 + j) % 100};
        e.f = (double)e.i;
        team_assert(g, same(data, j, x->type, e),
                    "%s: type %d, %zu of %zu elements%s: element %zu from %d is wrong",
                    what, (int)x->type, n, x->count, where, j, from);
    }
    team_assert(g, repeats(data, n, BLOCK_PERIOD, x->type),
                "%s: type %d, %zu of %zu elements%s: one of %d's is wrong", what,
                (int)x->type, n, x->count, where, from);
}

/* `counts` elements, or count of each, in a row: what I give to all, or get of all. */
static void fill_blocks(struct ddp_group *g, const struct args *x, const size_t *counts)
{
    char *at = x->a;
    for (int r = 0; r < ddp_group_size(g); r++) {
        size_t n = counts ? counts[r] : x->count;
        fill_block(x, at, n, ddp_group_rank(g), r);
        at += n * type_size(x->type);
    }
}

static void check_blocks(struct ddp_group *g, const char *what, const struct args *x,
                         const size_t *counts)
{
    const char *at = x->b;
    for (int r = 0; r < ddp_group_size(g); r++) {
        size_t n = counts ? counts[r] : x->count;
        check_block(g, what, x, at, n, r, ddp_group_rank(g));
        at += n * type_size(x->type);
    }
}

static void check_moves(struct ddp_group *g, const struct args *x)
{
    struct ddp_err err = {""};
    int rank = ddp_group_rank(g), size = ddp_group_size(g);
    size_t counts[8], back[8];
    int root = (int)(x->count + (size_t)x->type) % size;

    fill_block(x, x->a, x->count, rank, root);
    team_ok(g, ddp_gather(g, x->a, rank == root ? x->b : NULL, x->count, x->type, root,
                          &err));
    if (rank == root)
        check_blocks(g, "gather", x, NULL);
    uneven(counts, x->count, size, rank, 0);
    fill_block(x, x->a, counts[rank], rank, root);
    team_ok(g, ddp_gatherv(g, x->a, counts[rank], x->b, counts, x->type, root, &err));
    if (rank == root)
        check_blocks(g, "gatherv", x, counts);

    fill_blocks(g, x, NULL);
    team_ok(g, ddp_scatter(g, rank == root ? x->a : NULL, x->b, x->count, x->type, root,
                           &err));
    check_block(g, "scatter", x, x->b, x->count, root, rank);
    fill_blocks(g, x, counts);
    team_ok(g, ddp_scatterv(g, x->a, counts, x->b, counts[rank], x->type, root, &err));
    check_block(g, "scatterv", x, x->b, counts[rank], root, rank);

    fill_blocks(g, x, NULL);
    team_ok(g, ddp_all_to_all(g, x->a, x->b, x->count, x->type, &err));
    check_blocks(g, "all_to_all", x, NULL);
    for (int r = 0; r < size; r++) { /* a gives b what b gives a */
        counts[r] = (rank + r) % 3 == 0 ? x->count : (rank + r) % 3 == 1 ? 0 : 1;
        counts[r] = counts[r] < x->count ? counts[r] : x->count;
        back[r] = counts[r];
    }
    fill_blocks(g, x, counts);
    team_ok(g, ddp_all_to_allv(g, x->a, counts, x->b, back, x->type, &err));
    check_blocks(g, "all_to_allv", x, back);

    size_t at = uneven(counts, x->count, size, rank, 1) * type_size(x->type);
    for (int r = 0; r < size; r++) /* each rank sends me as much as to all */
        back[r] = counts[r];
    fill_block(x, x->a, counts[rank], rank, 0);
    team_ok(g, ddp_all_gatherv(g, x->a, x->b, counts, x->type, &err));
    const char *block = x->b;
    for (int r = 0; r < size; r++) {
        check_block(g, "all_gatherv", x, block, counts[r], r, 0);
        block += counts[r] * type_size(x->type);
    }
    memmove(x->b + at, x->a, counts[rank] * type_size(x->type));
    team_ok(g, ddp_all_gatherv(g, x->b + at, x->b, counts, x->type, &err));
    check_block(g, "all_gatherv in place", x, x->b + at, counts[rank], rank, 0);
}

/* ---- all cases ---- */

static void check_small(struct ddp_group *g, struct args *x)
{
    static const size_t counts[] = {0, 1, 7, 333, 2111};
    for (size_t c = 0; c < ARRAY_LEN(counts); c++) {
        x->count = counts[c];
        for (x->type = DDP_F32; x->type <= DDP_I8; x->type++) {
            int nops = 1 + (int)(is_float(x->type) ? DDP_AVG : DDP_BXOR);
            for (int op = (int)c % 2; op < nops;
                 op += 2) { /* the others at other sizes */
                x->op = (enum ddp_op)op;
                check_reductions(g, x);
            }
            check_copies(g, x);
            check_moves(g, x);
        }
    }
}

/* Many chunks, the last one odd; the longest is more than one chunk between hosts. */
static void check_large(struct ddp_group *g, struct args *x)
{
    static const struct {
        enum ddp_type type;
        enum ddp_op op;
        size_t count;
    } cases[] = {{DDP_F32, DDP_SUM, 70003},   {DDP_F64, DDP_AVG, 9001},
                 {DDP_U8, DDP_MAX, 70001},    {DDP_BF16, DDP_AVG, 20001},
                 {DDP_F16, DDP_SUM, 9001},    {DDP_I8, DDP_BXOR, 10001},
                 {DDP_I64, DDP_PRODUCT, 9001}};
    for (size_t c = 0; c < (x->arena ? 3 : ARRAY_LEN(cases)); c++) {
        x->type = cases[c].type;
        x->op = cases[c].op;
        x->count = cases[c].count;
        check_reductions(g, x);
        check_copies(g, x);
        check_moves(g, x);
    }
    x->type = DDP_F32;
    x->op = DDP_SUM;
    x->count = 1200007;
    struct ddp_err err = {""};
    fill(x->a, x->count, 0, ddp_group_rank(g), x->type, x->op);
    team_assert(g, ddp_all_reduce(g, x->a, x->count, x->type, x->op, &err) == 0, "%s",
                err.text);
    check_reduced(g, "all_reduce", x, x->a, 0);
    fill(x->a, x->count, 0, ddp_group_rank(g), x->type, x->op);
    team_assert(
        g, ddp_broadcast(g, x->a, x->count, x->type, 1 % ddp_group_size(g), &err) == 0,
        "%s", err.text);
    fill(x->b, x->count, 0, 1 % ddp_group_size(g), x->type, x->op);
    team_assert(g, memcmp(x->a, x->b, x->count * 4) == 0, "a long broadcast is wrong");
}

enum { ROOM = 6 << 20 };

static void check_collectives(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    struct args x = {.a = malloc(ROOM), .b = malloc(ROOM)};
    team_assert(g, ddp_barrier(g, &err) == 0, "%s", err.text);
    check_small(g, &x);
    check_large(g, &x);
    free(x.a);
    free(x.b);
    x.arena = true;
    x.a = ddp_arena_alloc(g, ROOM, &err);
    team_assert(g, x.a, "%s", err.text);
    x.b = ddp_arena_alloc(g, ROOM, &err);
    team_assert(g, x.b, "%s", err.text);
    check_large(g, &x);
    x.a += 4; /* need not be aligned to more than an element */
    x.type = DDP_F32;
    x.op = DDP_AVG;
    x.count = 9999;
    check_reductions(g, &x);
    team_assert(g, ddp_barrier(g, &err) == 0, "%s", err.text);
}

LOOP_TEST(collectives_agree_with_a_plain_sum, TEAM_LAYOUTS)
{
    assert_team(&team_layouts[_i], check_collectives, NULL);
}

/* Blocks longer than a staging buffer, which has the data of this host and of others. */
static void check_long_blocks(struct ddp_group *g, const void *arg)
{
    enum { COUNT = 2400007, MODULUS = 1009 };
    struct ddp_err err = {""};
    size_t size = (size_t)ddp_group_size(g), rank = (size_t)ddp_group_rank(g);
    float *mine = malloc(COUNT * sizeof *mine), *all = malloc(size * COUNT * sizeof *all);
    for (size_t i = 0; i < COUNT; i++)
        mine[i] = (float)((rank * COUNT + i) % MODULUS);
    team_ok(g, ddp_all_gather(g, mine, all, COUNT, DDP_F32, &err));
    for (size_t i = 0; i < size * COUNT; i++)
        team_assert(g, all[i] == (float)(i % MODULUS), "element %zu is %g", i,
                    (double)all[i]);
    team_ok(g, ddp_reduce_scatter(g, all, mine, COUNT, DDP_F32, DDP_SUM, &err));
    for (size_t i = 0; i < COUNT; i++)
        team_assert(g, mine[i] == (float)size * all[rank * COUNT + i], "sum %zu is %g", i,
                    (double)mine[i]);
    free(mine);
    free(all);
}

TEST(blocks_may_be_long)
{
    assert_team(&(struct team){.size = 3, .layout = "aab"}, check_long_blocks, NULL);
    assert_team(&(struct team){.size = 2}, check_long_blocks, NULL);
}

/* Each rank writes where the next rank of its host will read; the second block lies
 * behind one that is no multiple of a line. */
static void check_arena(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    int rank = ddp_group_rank(g), size = ddp_group_size(g), local = 0;
    bool shared = strcmp(ddp_group_backend(g), "shm") == 0;
    int *odd = ddp_arena_alloc(g, 12, &err), *mine = ddp_arena_alloc(g, 8192, &err);
    team_assert(g, odd && mine, "%s", err.text);
    for (int r = 0; r < size; r++) {
        int *there = ddp_arena_of(g, mine + 1000, r);
        team_assert(g, there || !shared, "rank %d is on this host", r);
        if (there) {
            there[rank] = 100 * rank + r;
            local++;
        }
    }
    team_assert(g, ddp_barrier(g, &err) == 0, "%s", err.text);
    for (int r = 0; r < size; r++) {
        bool written = ddp_arena_of(g, mine, r) != NULL;
        int told = mine[1000 + r], want = written ? 100 * r + rank : 0;
        team_assert(g, told == want, "rank %d has written %d, not %d", r, told, want);
    }
    team_assert(g, size == 1 || !shared || local == size, "of %d ranks %d are here", size,
                local);
    team_assert(g,
                (size == 1 || !ddp_arena_of(g, &rank, (rank + 1) % size)) &&
                    !ddp_arena_of(g, mine, size) && !ddp_arena_of(g, mine, -1),
                "there is nothing of the kind");
}

LOOP_TEST(a_ranks_arena_is_there_for_all_of_its_host, TEAM_LAYOUTS)
{
    assert_team(&team_layouts[_i], check_arena, NULL);
}

/* The first rank of a host decides. */
static void check_asked(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    struct ddp_group_options o = {.rank = -1,
                                  .name = "asked",
                                  .timeout_ms = 60000,
                                  .arena_bytes = ddp_group_rank(g) ? 5000 : 4000};
    struct ddp_group *small = ddp_group_init(&o, &err);
    team_assert(g, small, "%s", err.text);
    team_assert(g,
                !ddp_arena_alloc(small, 4500, &err) &&
                    strstr(err.text, "(arena_bytes: 4000 on rank 0 on ") &&
                    strstr(err.text, ddp_group_rank(g) ? ", 5000 on" : ", 4000 on"),
                "%s", err.text);
    ddp_group_destroy(small);
}

TEST(another_size_of_the_arena_is_told)
{
    assert_team(&(struct team){.size = 2}, check_asked, NULL);
}

/* Several at once; started in one order, waited for in another. */
static void check_overlap(struct ddp_group *g, const void *arg)
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
        team_assert(g, r[i], "%s", err.text);
    }
    int done = 0;
    while (!done)
        team_assert(g, ddp_test(r[7], &done, &err) == 0, "%s", err.text);
    team_assert(g, ddp_barrier(g, &err) == 0, "%s", err.text);
    for (int i = N - 1; i >= 0; i--) {
        float all = (float)(size * i + size * (size - 1) / 2);
        team_assert(g, i == 7 || ddp_wait(r[i], &err) == 0, "%s", err.text);
        team_assert(g, x[i][2] == all, "sum %d is %g, not %g", i, (double)x[i][2],
                    (double)all);
        team_assert(g, x[i][COUNT - 1] == (i == 5 ? (float)(i + rank) : all),
                    "sum %d is wrong at the end", i);
    }
    /* a request that is not waited for ends with the group */
    team_assert(g, ddp_irecv(g, x[0], 4, (rank + 1) % size, 9, &err), "%s", err.text);
}

LOOP_TEST(several_are_under_way_at_once, TEAM_LAYOUTS)
{
    assert_team(&team_layouts[_i], check_overlap, NULL);
}
