#include "tests/support/suite.h"

#include "common/duration.h"
#include "common/mem.h"
#include "common/size.h"

static const struct {
    const char *text;
    int64_t ms; /* -1: refused */
} cases[] = {
    {"90", 90000},
    {"90s", 90000},
    {"250ms", 250},
    {"5m", 300000},
    {"1.5h", 5400000},
    {"1h30m", 5400000},
    {"1d12h", 129600000},
    {"1m30s500ms", 90500},
    {"36:00:00", 129600000},
    {"1-12:00:00", 129600000},
    {"00:00:07", 7000},
    {"1.5", 1500},
    {"1h30", -1},
    {"30m1h", -1},
    {"1h1h", -1},
    {"2:00", -1},
    {"1:60:00", -1},
    {"-1:00:00", -1},
    {"1-24:00:00", -1},
    {".", -1},
    {"1.2.3", -1},
    {"0x10", -1},
    {"1e3", -1},
    {"5m ", -1},
    {" 5m", -1},
    {"99999999999999d", -1},
    {"2min", 120000},
    {"1d", 86400000},
    {"0", 0},
    {"", -1},
    {"-3", -1},
    {"5x", -1},
    {"s", -1},
    {"nan", -1},
    {"1e999", -1},
    {"3 s", -1},
};

LOOP_TEST(durations_are_parsed_or_rejected, ARRAY_LEN(cases))
{
    struct ddp_err err = {""};
    int64_t ms = -1;
    int rc = duration_parse(cases[_i].text, &ms, &err);
    ck_assert_int_eq(rc, cases[_i].ms < 0 ? -1 : 0);
    ck_assert_int_eq(ms, cases[_i].ms);
    ck_assert_int_eq(err.text[0] != '\0', rc < 0);
}

static const struct {
    const char *text;
    int64_t bytes; /* -1: refused */
} sizes[] = {
    {"8192", 8192},
    {"8k", 8192},
    {"8K", 8192},
    {"512M", 512 << 20},
    {"2g", 1ll << 31},
    {"64GB", 64ll << 30},
    {"64GiB", 64ll << 30},
    {"1.5T", 3ll << 39},
    {"0", 0},
    {"", -1},
    {"G", -1},
    {"-1", -1},
    {"8x", -1},
    {"8kk", -1},
    {"64Gigs", -1},
    {"64 G", -1},
    {"9999999999T", -1},
};

LOOP_TEST(sizes_are_parsed_or_rejected, ARRAY_LEN(sizes))
{
    struct ddp_err err = {""};
    int64_t bytes = -1;
    int rc = size_parse(sizes[_i].text, &bytes, &err);
    ck_assert_int_eq(rc, sizes[_i].bytes < 0 ? -1 : 0);
    ck_assert_int_eq(bytes, sizes[_i].bytes);
}

TEST(the_clocks_are_one_and_do_not_go_back)
{
    int64_t ns = now_ns(), ms = now_ms();
    ck_assert_int_ge(ms, ns / 1000000);
    ck_assert_int_ge(now_ns() / 1000000, ms);
}
