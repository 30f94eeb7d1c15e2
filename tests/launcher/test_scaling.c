#include "tests/support/suite.h"

#include "common/mem.h"
#include "launcher/tools/scaling/growth.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- the work of each size ---------------------------------------------------------- */

static const struct {
    const char *text, *mark; /* --scaling, a word of the program */
    int strong, weak, n;     /* series, sizes */
    const char *strong4, *weak4, *error;
} works[] = {
    {"1,2,4,8", "x", 1, 0, 4, "x", "x", NULL},
    {"weak:1,4", "x", 0, 1, 2, "x", "x", NULL},
    {"4", "{per-rank:64}", 1, 1, 1, "16", "64", NULL},
    {"strong:4", "{per-rank:64}", 1, 0, 1, "16", "64", NULL},
    {"1,4", "n={total:1000}", 1, 1, 2, "n=1000", "n=4000", NULL},
    {"1,4", "{total:3}/{per-rank:8}.", 1, 1, 2, "3/2.", "12/8.", NULL},
    {"1,4", "{other}", 1, 0, 2, "{other}", "{other}", NULL},
    {"4", "{per-rank:6}", 1, 1, 1, NULL, "6",
     "no whole number for each of 4 ranks; write a "
     "multiple of 4"},
    {"4", "{per-rank:x}", 1, 1, 1, NULL, NULL, "expected {per-rank:64} or {total:1000}"},
    {"4", "{total:1", 1, 1, 1, NULL, NULL, "expected {per-rank:64} or {total:1000}"},
    {"4", "{total:9223372036854775807}", 1, 1, 1, "9223372036854775807", NULL,
     "too much"},
};

static void check_command(const char *word, enum series series, const char *expected,
                          const char *error)
{
    struct strv out = {0};
    struct ddp_err err = {""};
    char *copy = xstrdup(word), *argv[] = {copy, NULL};
    int rc = work_command(argv, series, 4, &out, &err);
    if (expected)
        ck_assert_msg(rc == 0 && strcmp(out.v[0], expected) == 0, "%s: %s", word,
                      err.text);
    else
        ck_assert_msg(rc == -1 && strstr(err.text, error), "%s: %s", word, err.text);
    strv_finish(&out);
    free(copy);
}

LOOP_TEST(one_command_for_both_series, ARRAY_LEN(works))
{
    struct work w;
    struct ddp_err err = {""};
    char *word = xstrdup(works[_i].mark), *argv[] = {word, NULL};
    ck_ok(work_read(works[_i].text, argv, &w, &err), err);
    ck_assert_int_eq(w.series[SERIES_STRONG], works[_i].strong);
    ck_assert_int_eq(w.series[SERIES_WEAK], works[_i].weak);
    ck_assert_int_eq(w.nsizes, works[_i].n);
    check_command(word, SERIES_STRONG, works[_i].strong4, works[_i].error);
    check_command(word, SERIES_WEAK, works[_i].weak4, works[_i].error);
    free(word);
}

static const struct {
    const char *text, *error;
} bad_sizes[] = {
    {"", "expected numbers of ranks such as 1,2,4,8, not ''"},
    {"1,,2", "not ',2'"},
    {"1,2,", "not ''"},
    {"0,1", "not '0,1'"},
    {"1,two", "not 'two'"},
    {"4,2", "2 follows 4; write the sizes from small to large"},
    {"2,2", "2 follows 2"},
    {"loose:1,2", "not 'loose:1,2'"},
    {"99999999999", "not '99999999999'"},
};

LOOP_TEST(sizes_grow, ARRAY_LEN(bad_sizes))
{
    struct work w;
    struct ddp_err err = {""};
    ck_assert_int_eq(work_read(bad_sizes[_i].text, NULL, &w, &err), -1);
    ck_assert_msg(strstr(err.text, bad_sizes[_i].error), "%s", err.text);
}

/* --- rates -------------------------------------------------------------------------- */

static const struct {
    const char *line;
    double value;
    const char *unit;
} lines[] = {
    {"speed       12,345 images/s; 1.00 s of training", 12345, "images/s"},
    {"[0 node1] throughput: 3.2e4 tokens/sec", 32000, "tokens/s"},
    {"100 samples/s then 250.5 samples/s", 250.5, "samples/s"},
    {"42it/s", 42, "it/s"},
    {"read at 500 MB/s", 0, ""},
    {"images/s: high", 0, ""},
    {"-5 images/s", 5, "images/s"}, /* a dash, not a sign */
    {"0 images/s", 0, ""},
    {"12 images/second", 0, ""},
    {"12 images/sek", 0, ""},
    {"a/b images/s", 0, ""},
    {"epoch 3, 1,234,567 Images/s", 1234567, "Images/s"},
};

LOOP_TEST(the_last_rate_of_a_line_counts, ARRAY_LEN(lines))
{
    struct rate r = {0};
    rate_read(&r, lines[_i].line);
    ck_assert_msg(fabs(r.value - lines[_i].value) < 1e-9 &&
                      strcmp(r.unit, lines[_i].unit) == 0,
                  "%s: %g %s", lines[_i].line, r.value, r.unit);
}

/* --- numbers ------------------------------------------------------------------------ */

static void add(struct growth *t, enum series series, int ranks, double seconds,
                double rate)
{
    struct row r = {.series = series, .ranks = ranks, .seconds = seconds};
    r.rate.value = rate;
    strcpy(r.rate.unit, rate > 0 ? "images/s" : "");
    growth_add(t, &r);
}

static void check_row(const struct growth *t, size_t i, int ranks, double speedup)
{
    ck_assert_int_eq(t->rows[i].ranks, ranks);
    ck_assert_msg(fabs(t->rows[i].speedup - speedup) < 1e-9 &&
                      fabs(t->rows[i].efficiency - speedup / ranks) < 1e-9,
                  "row %zu: %g %g", i, t->rows[i].speedup, t->rows[i].efficiency);
}

TEST(numbers_follow_from_rates_or_else_from_times)
{
    struct growth t = {0};
    add(&t, SERIES_WEAK, 4, 10, 0);
    add(&t, SERIES_WEAK, 1, 8, 0);    /* the order does not matter */
    add(&t, SERIES_STRONG, 4, 99, 0); /* replaced below */
    add(&t, SERIES_STRONG, 2, 20, 0);
    add(&t, SERIES_STRONG, 4, 12.5, 0);
    ck_assert_uint_eq(t.n, 4);
    check_row(&t, 0, 2, 2); /* the base, though it is not one rank */
    check_row(&t, 1, 4, 3.2);
    check_row(&t, 2, 1, 1);
    check_row(&t, 3, 4, 3.2);
    add(&t, SERIES_STRONG, 2, 20, 100);
    check_row(&t, 1, 4, 3.2); /* one has no rate: by times */
    add(&t, SERIES_STRONG, 4, 12.5, 190);
    check_row(&t, 1, 4, 3.8);
    growth_finish(&t);
}

TEST(the_table_is_read_back)
{
    struct growth t = {0}, back = {0};
    struct ddp_err err = {""};
    char *dir = temp_dir(), *csv = xasprintf("%s/scaling.csv", dir);
    char *table = NULL;
    size_t size;
    int n = 0;
    ck_ok(growth_load(&back, dir, &err), err); /* nothing yet */
    add(&t, SERIES_STRONG, 1, 20, 1234.5);
    add(&t, SERIES_STRONG, 64, 12.5, 19000);
    add(&t, SERIES_WEAK, 2, 12.5, 0);
    ck_ok(growth_save(&t, dir, "a <b> & c", &err), err);
    ck_ok(growth_load(&back, dir, &err), err);
    ck_assert_uint_eq(back.n, 3);
    for (size_t i = 0; i < 3; i++) {
        ck_assert_int_eq(back.rows[i].series, t.rows[i].series);
        check_row(&back, i, t.rows[i].ranks, t.rows[i].speedup);
    }
    FILE *out = open_memstream(&table, &size);
    growth_print(&back, out);
    fclose(out);
    for (const char *p = table; (p = strchr(p, '\n')); p++)
        n++;
    free(table);
    ck_assert_int_eq(n, 4 + 1 + 3);
    growth_finish(&back);
    FILE *f = fopen(csv, "ae");
    ck_assert_ptr_nonnull(f);
    fputs("loose,1,2,,,1,1\n", f);
    fclose(f);
    ck_assert_int_eq(growth_load(&back, dir, &err), -1);
    ck_assert_msg(strstr(err.text, "scaling.csv:5:1: not a line of this table"), "%s",
                  err.text);
    ck_assert_int_eq(growth_save(&t, "/proc/none", "", &err), -1);
    growth_finish(&back);
    growth_finish(&t);
    free(csv);
    free(dir);
}
