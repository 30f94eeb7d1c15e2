#include "tests/support/suite.h"

#include "common/loop.h"

static struct loop *l;
static int ran;

static void setup(void)
{
    l = loop_create(NULL);
    ran = 0;
}

static void teardown(void)
{
    loop_destroy(l);
}

static void stop(void *arg)
{
    loop_stop(l, 7);
}

static void again(void *arg)
{
    ran++;
    loop_post(l, stop, NULL);
}

static void count(void *arg)
{
    ran += 100;
}

START_TEST(posted_calls_run_and_may_post)
{
    loop_post(l, again, NULL);
    ck_assert_int_eq(loop_run(l), 7);
    ck_assert_int_eq(ran, 1);
}
END_TEST

START_TEST(withdrawn_calls_do_not_run)
{
    int who;
    loop_post(l, count, &who);
    loop_post(l, again, NULL);
    loop_unpost(l, &who);
    loop_run(l);
    ck_assert_int_eq(ran, 1);
}
END_TEST

Suite *suite(void)
{
    Suite *s = suite_create("loop");
    TCase *t = tcase_create("loop");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, posted_calls_run_and_may_post);
    tcase_add_test(t, withdrawn_calls_do_not_run);
    suite_add_tcase(s, t);
    return s;
}
