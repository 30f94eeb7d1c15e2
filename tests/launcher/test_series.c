/* Numbers that are taken from lines of output, and the logs they come from. */
#include "tests/support/suite.h"

#include "common/mem.h"
#include "launcher/plugins/observe/view/logs.h"
#include "launcher/plugins/observe/view/series.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "loss=0.25 step=3": the last point of each series. */
static char *last_points(const struct series *s)
{
    const struct point *p;
    const char *name;
    size_t n;
    char *text = xstrdup("");
    for (size_t i = 0; series_get(s, i, &name, &p, &n); i++) {
        char *longer = xasprintf("%s%s%s=%.9g", text, i ? " " : "", name, p[n - 1].value);
        free(text);
        text = longer;
    }
    return text;
}

/* The last points are `expected`, and the series is no longer needed. */
static void check_points(struct series *s, const char *expected)
{
    char *got = last_points(s);
    ck_assert_str_eq(got, expected);
    free(got);
    series_destroy(s);
}

static const struct {
    const char *line, *points;
} lines[] = {
    {"loss 0.25", "loss=0.25"},
    {"loss=0.25, lr=1e-3", "loss=0.25 lr=0.001"},
    {"loss: -1.5e+2", "loss=-150"},
    {"{'loss': 2.31, 'learning_rate': 5e-05}", "loss=2.31 learning_rate=5e-05"},
    {"{'loss': '3.308', 'epoch': '0.04'}", "loss=3.308 epoch=0.04"},
    {"{\"loss\": 1, \"step\": 2}", "loss=1 step=2"},
    {"epoch   1/5   42 %  loss 0.4711  12345 images/s",
     "epoch=1 progress=0.2 loss=0.4711 images/s=12345"},
    {"epoch 2/5  loss 0.5  test loss 0.6  test accuracy  91.20 %",
     "epoch=2 progress=0.4 loss=0.5 test_loss=0.6 test_accuracy=91.2"},
    {"loss is nan", "loss_is=nan"},
    {"loss=nan", "loss=nan"},
    {"[2026-11-22 10:00:00] loss 3", "loss=3"},
    {"lossless v1.2a x2", ""},
    {"no number of loss here", ""},
    {"nothing of interest 5", ""},
    {"loss 1.2.3 4", "loss=1.2"},
    {"loss: 2.5  tps: 1,234  tokens: 12,345,678.5  at 0,123",
     "loss=2.5 tps=1234 tokens=12345678.5 at=0"},
    {"loss 1 shape 1,2345 a 1,23", "loss=1 shape=1 a=1"},
    {"\033[31mstep: 10\033[0m  \033[1;32mloss\033[0m: 0.5\033[", "step=10 loss=0.5"},
    {"", ""},
};

LOOP_TEST(lines_give_points, ARRAY_LEN(lines))
{
    struct ddp_err err;
    struct series *s = series_create(NULL, &err);
    series_line(s, 0, lines[_i].line, strlen(lines[_i].line), 1);
    check_points(s, lines[_i].points);
}

TEST(the_longest_line_ends_with_a_name)
{
    struct ddp_err err;
    struct series *s = series_create(NULL, &err);
    char line[8192];
    memset(line, ' ', sizeof line);
    memcpy(line + 4095 - 5, "loss=", 5); /* 4095 bytes are looked at */
    series_line(s, 0, line, sizeof line, 1);
    check_points(s, "");
}

TEST(only_rank_0_without_a_pattern_and_the_lowest_with_one)
{
    struct ddp_err err;
    struct series *s = series_create(NULL, &err);
    series_line(s, 1, "loss 5", 6, 1);
    check_points(s, "");
    s = series_create("^M", &err);
    series_line(s, 2, "M: loss 5", 9, 1);
    series_line(s, 1, "M: loss 6", 9, 2);
    series_line(s, 2, "M: loss 7", 9, 3);
    series_line(s, 1, "loss 8", 6, 4);
    check_points(s, "loss=6");
}

TEST(a_wrong_pattern_is_an_error)
{
    struct ddp_err err;
    ck_assert_ptr_null(series_create("(", &err));
    ck_assert_ptr_nonnull(strstr(err.text, "--metric '('"));
}

TEST(a_long_series_is_thinned_and_ends_with_the_newest)
{
    struct ddp_err err;
    const struct point *p;
    const char *name;
    size_t n;
    struct series *s = series_create(NULL, &err);
    for (int i = 0; i < 100000; i++)
        series_add(s, 0, "loss", i, i);
    ck_assert(series_get(s, 0, &name, &p, &n));
    ck_assert_uint_le(n, 2048);
    ck_assert_uint_ge(n, 1024);
    ck_assert(fabs(p[0].value) < 0.5);
    ck_assert(fabs(p[n - 1].value - 99999) < 0.5);
    for (size_t i = 1; i < n; i++)
        ck_assert(p[i].t > p[i - 1].t);
    series_destroy(s);
}

TEST(names_of_others_are_plain)
{
    struct ddp_err err;
    struct series *s = series_create(NULL, &err);
    series_add(s, 0, "a\"b\\c\n", 0, 1);
    check_points(s, "a_b_c_=1");
}

TEST(a_name_that_is_changed_is_one_series)
{
    static const char *const names[] = {
        "a\"b",
        "eval_of_a_data_set_with_a_name_that_is_longer_than_a_series_has_room_for_accuracy",
        "f\u00e9",
    };
    struct series *s = series_create(NULL, NULL);
    for (int i = 1; i <= 3; i++) {
        for (size_t k = 0; k < ARRAY_LEN(names); k++)
            series_add(s, 0, names[k], i, i);
    }
    check_points(s, "a_b=3 "
                    "eval_of_a_data_set_with_a_name_that_is_longer_than_a_series_has=3 "
                    "f__=3");
}

/* --- logs ------------------------------------------------------------------------------
 */

static char said[4096];

static void on_line(size_t rank, const char *text, size_t size, void *arg)
{
    size_t n = strlen(said);
    snprintf(said + n, sizeof said - n, "%zu:%.*s|", rank, (int)size, text);
}

static void feed(struct logs *l, unsigned stream, const char *text)
{
    logs_feed(l, 0, stream, text, strlen(text));
}

TEST(lines_of_two_streams_stay_whole)
{
    struct logs *l = logs_create(2, on_line, NULL);
    feed(l, 0, "one");
    feed(l, 1, "err\r\n");
    feed(l, 0, " line\n\nrest");
    logs_feed(l, 1, 0, "x\n", 2);
    logs_feed(l, 2, 0, "no such rank\n", 13);
    ck_assert_str_eq(said, "0:err|0:one line|0:|1:x|");
    int64_t from = -1;
    size_t n;
    const char *text = logs_read(l, 0, &from, 100, &n);
    ck_assert_int_eq(from, 0);
    ck_assert_mem_eq(text, "err\none line\n\n", n);
    from = 4;
    text = logs_read(l, 0, &from, 3, &n);
    ck_assert_mem_eq(text, "one", n);
    ck_assert_ptr_null(logs_read(l, 2, &from, 3, &n));
    logs_destroy(l);
}

TEST(ranks_are_added)
{
    struct logs *l = logs_create(1, on_line, NULL);
    int64_t from = 0;
    size_t n;
    logs_feed(l, 2, 0, "lost\n", 5);
    logs_grow(l, 3);
    logs_grow(l, 2);
    logs_feed(l, 2, 0, "kept\n", 5);
    const char *text = logs_read(l, 2, &from, 100, &n);
    ck_assert_ptr_nonnull(text);
    ck_assert_uint_eq(n, 5);
    ck_assert_mem_eq(text, "kept\n", n);
    logs_destroy(l);
}

TEST(a_progress_bar_is_one_line_a_second)
{
    struct logs *l = logs_create(1, on_line, NULL);
    for (int i = 0; i < 1000; i++) {
        char bar[40];
        snprintf(bar, sizeof bar, "\rbar %d %%", i);
        feed(l, 1, bar);
    }
    feed(l, 1, "\ndone\n");
    ck_assert_ptr_nonnull(strstr(said, "0:bar 0 %|"));
    ck_assert_ptr_nonnull(strstr(said, "0:bar 999 %|0:done|"));
    ck_assert_uint_lt(strlen(said), 200);
    logs_destroy(l);
}

TEST(a_full_log_keeps_its_end)
{
    struct logs *l = logs_create(1, on_line, NULL);
    char line[100];
    for (int i = 0; i < 200000; i++) {
        snprintf(line, sizeof line, "line %d of a log that is too long to be kept\n", i);
        feed(l, 0, line);
    }
    int64_t from = 0;
    size_t n;
    const char *text = logs_read(l, 0, &from, SIZE_MAX, &n);
    ck_assert_int_gt(from, 0);
    ck_assert_uint_ge(n, 1 << 20);
    ck_assert_mem_eq(text, "line ", 5);
    ck_assert_mem_eq(text + n - strlen(line), line, strlen(line));
    from = -1;
    text = logs_read(l, 0, &from, strlen(line), &n);
    ck_assert_mem_eq(text, line, n);
    logs_destroy(l);
}

static void on_found(size_t rank, const char *line, size_t size, void *arg)
{
    on_line(rank, line, size, arg);
}

TEST(search_ignores_case_and_has_a_limit)
{
    struct logs *l = logs_create(1, on_line, NULL);
    feed(l, 0, "Alpha\nbeta\nALPHABET\nalp\n");
    *said = '\0';
    logs_search(l, "alpha", 10, on_found, NULL);
    ck_assert_str_eq(said, "0:Alpha|0:ALPHABET|");
    *said = '\0';
    logs_search(l, "a", 2, on_found, NULL);
    ck_assert_str_eq(said, "0:Alpha|0:beta|");
    logs_destroy(l);
}
