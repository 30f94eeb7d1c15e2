/* Two ways to do one thing: the quicker one is gone, the other is tried now and then. */
#include "tests/support/suite.h"

#include "common/duration.h"
#include "worker/group/shm.h"

enum { MANY = 65536, TURNS = 320 };

static const struct {
    double cost[2];
    int least, most; /* turns of TURNS that go way 1 */
} cases[] = {
    {{0, 0}, 1, TURNS / 16}, /* nothing known: way 0, and trials */
    {{1, 2}, 1, TURNS / 16},
    {{2, 1}, TURNS - TURNS / 16, TURNS - 1},
};

LOOP_TEST(the_quicker_way_is_gone, (sizeof cases / sizeof cases[0]))
{
    struct autotune w = {.cost = {cases[_i].cost[0], cases[_i].cost[1]}};
    int second = 0;
    for (int i = 0; i < TURNS; i++)
        second += autotune_begin(&w, MANY);
    ck_assert_int_ge(second, cases[_i].least);
    ck_assert_int_le(second, cases[_i].most);
}

TEST(a_short_turn_tells_nothing)
{
    struct autotune w = {.cost = {2, 1}};
    ck_assert_int_eq(autotune_begin(&w, 64), 1);
    autotune_end(&w, 64);
    ck_assert_uint_eq(w.turns, 0);
    ck_assert_double_eq(w.cost[0], 2);
    ck_assert_double_eq(w.cost[1], 1);
}

TEST(what_is_learnt_turns_the_choice)
{
    struct autotune w = {.cost = {2, 1}};
    for (int i = 0; i < 16; i++) { /* the CPUs have been moved: now 8 ns a byte */
        w.way = 1;
        w.began = now_ns() - 8 * MANY;
        autotune_end(&w, MANY);
    }
    ck_assert_double_gt(w.cost[1], 4);
    ck_assert_int_eq(autotune_begin(&w, 64), 0);
}

TEST(one_interruption_says_little)
{
    struct autotune w = {.way = 0, .cost = {1, 1.9}};
    w.began = now_ns() - 1000000000;
    autotune_end(&w, MANY);
    ck_assert_double_lt(w.cost[0], 1.9);
}
