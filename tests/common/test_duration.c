#include "tests/support/suite.h"

#include "common/duration.h"
#include "common/mem.h"

static const struct {
    const char *text;
    int64_t ms; /* -1: refused */
} cases[] = {
    {"90", 90000},    {"90s", 90000},   {"250ms", 250}, {"5m", 300000}, {"1.5h", 5400000},
    {"2min", 120000}, {"1d", 86400000}, {"0", 0},       {"", -1},       {"-3", -1},
    {"5x", -1},       {"s", -1},        {"nan", -1},    {"1e999", -1},  {"3 s", -1},
};

START_TEST(durations_are_read_or_refused)
{
    struct ddp_err err = {""};
    int64_t ms = -1;
    int rc = duration_parse(cases[_i].text, &ms, &err);
    ck_assert_int_eq(rc, cases[_i].ms < 0 ? -1 : 0);
    ck_assert_int_eq(ms, cases[_i].ms);
    ck_assert_int_eq(err.text[0] != '\0', rc < 0);
}
END_TEST

START_TEST(the_clocks_are_one_and_do_not_go_back)
{
    int64_t ns = now_ns(), ms = now_ms();
    ck_assert_int_ge(ms, ns / 1000000);
    ck_assert_int_ge(now_ns() / 1000000, ms);
}
END_TEST

Suite *suite(void)
{
    Suite *s = suite_create("duration");
    TCase *t = tcase_create("duration");
    tcase_add_loop_test(t, durations_are_read_or_refused, 0, ARRAY_LEN(cases));
    tcase_add_test(t, the_clocks_are_one_and_do_not_go_back);
    suite_add_tcase(s, t);
    return s;
}
