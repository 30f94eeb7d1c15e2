/* --preflight: comparison of the findings of several hosts */
#include "common/err.h"
#include "common/mem.h"
#include "launcher/plugins/preflight/results.h"
#include "tests/support/suite.h"

#include <stdlib.h>
#include <string.h>

static const char *const names[] = {"n1", "n2", "n3", "n4"};
enum { HOSTS = 4 };

struct finding {
    unsigned node;
    const char *check, *item, *value, *key;
    long long number;
    const char *problem;
};

static uint32_t row(const char *name)
{
    for (uint32_t i = 0; i < CHECKS; i++) {
        if (strcmp(checks[i].name, name) == 0)
            return i;
    }
    ck_abort_msg("no check '%s'", name);
}

static void put(struct results *b, struct finding f)
{
    struct msg_finding m = {.check = row(f.check),
                            .item = xstrdup(f.item),
                            .value = xstrdup(f.value),
                            .key = xstrdup(f.key),
                            .number = f.number,
                            .problem = xstrdup(f.problem)};
    results_add(b, f.node, &m);
}

/* Lines of the problems; `*faults`: how many of them count. */
static char *problems_of(struct results *b, size_t *faults)
{
    SCOPED(strv_finish) struct strv lines = {0};
    char *text = xstrdup("");
    results_judge(b);
    *faults = results_problems(b, &lines);
    for (size_t i = 0; i < lines.n; i++)
        xappendf(&text, "%s\n", lines.v[i]);
    return text;
}

static void expect_problems(struct results *b, const char *expected, size_t faults,
                            size_t bad_hosts)
{
    size_t found;
    char *text = problems_of(b, &found);
    ck_assert_uint_eq(found, faults);
    ck_assert_str_eq(text, expected);
    ck_assert_uint_eq(results_faulty(b), bad_hosts);
    free(text);
    results_destroy(b);
}

TEST(the_minority_is_reported)
{
    struct results *b = results_create(names, HOSTS);
    for (unsigned i = 0; i < HOSTS; i++)
        put(b, (struct finding){i, "user", .value = i == 2 ? "bob (7)" : "al (5)",
                                .key = i == 2 ? "7" : "5"});
    expect_problems(b,
                    "n3: user: bob (7), but al (5) on n[1-2,4]; hosts cannot read each "
                    "other's files\n",
                    1, 1);
}

TEST(on_a_tie_the_first_host_counts)
{
    struct results *b = results_create(names, HOSTS);
    for (unsigned i = 0; i < HOSTS; i++)
        put(b, (struct finding){i, "user", .value = i % 2 ? "b" : "a",
                                .key = i % 2 ? "b" : "a"});
    expect_problems(b,
                    "n[2,4]: user: b, but a on n[1,3]; hosts cannot read each other's "
                    "files\n",
                    1, 2);
}

TEST(at_most_three_items_are_named)
{
    static const char *const items[] = {"la", "lb", "lc", "ld", "le"};
    struct results *b = results_create(names, 2);
    for (unsigned i = 0; i < 2; i++) {
        for (size_t k = 0; k < ARRAY_LEN(items); k++)
            put(b, (struct finding){i, "libraries", items[k], i ? "/y" : "/x",
                                    i && k != 1 ? "new" : "old"});
    }
    expect_problems(
        b,
        "n2: libraries: la: /y, lc: /y, ld: /y and 1 more, but /x on n1; load "
        "the same modules, or give LD_LIBRARY_PATH with -x\n",
        1, 1);
}

TEST(a_host_with_a_problem_is_not_counted)
{
    struct results *b = results_create(names, HOSTS);
    put(b, (struct finding){0, "directory", .value = "'/x'", .key = "1"});
    put(b, (struct finding){1, "directory", .problem = "not there"});
    put(b, (struct finding){2, "directory", .problem = "not there"});
    put(b, (struct finding){3, "directory", .value = "'/x'", .key = "1"});
    expect_problems(b, "n[2-3]: directory: not there\n", 1, 2);
}

TEST(a_remark_is_no_fault)
{
    struct results *b = results_create(names, 2);
    put(b, (struct finding){0, "cpus", .value = "8 CPUs", .key = "8"});
    put(b, (struct finding){1, "cpus", .value = "4 CPUs", .key = "4"});
    expect_problems(
        b, "note: n2: cpus: 4 CPUs, but 8 CPUs on n1; the slowest host limits the job\n",
        0, 0);
}

TEST(hosts_with_one_problem_share_its_line)
{
    struct results *b = results_create(names, HOSTS);
    put(b, (struct finding){1, "port", .problem = "none left"});
    put(b, (struct finding){2, "port", .problem = "none left"});
    put(b, (struct finding){3, "port", .problem = "broken"});
    expect_problems(b, "n[2-3]: port: none left\nn4: port: broken\n", 2, 3);
}

/* Seconds of the clocks of four hosts, and whether one is wrong. */
static const struct {
    const char *check;
    long long numbers[HOSTS];
    const char *bad; /* hosts with a fault */
} odd[] = {
    {"clock", {0, 999000000, -999000000, 5}, ""},
    {"clock", {0, 3000000000, -2000000000, 5}, "n2 n3 "},
};

LOOP_TEST(numbers_that_are_faults, ARRAY_LEN(odd))
{
    struct results *b = results_create(names, HOSTS);
    for (unsigned i = 0; i < HOSTS; i++)
        put(b, (struct finding){i, odd[_i].check, "peer", .number = odd[_i].numbers[i]});
    size_t lines = 0, found;
    char *text = problems_of(b, &found);
    for (unsigned i = 0; i < HOSTS; i++) {
        bool bad = strstr(odd[_i].bad, names[i]), said = strstr(text, names[i]);
        ck_assert_msg(bad == said, "%s: %s", names[i], text);
        lines += bad;
    }
    ck_assert_uint_eq(found, lines);
    ck_assert_uint_eq(results_faulty(b), lines);
    free(text);
    results_destroy(b);
}

TEST(the_table_folds)
{
    struct results *b = results_create(names, HOSTS);
    for (unsigned i = 0; i < HOSTS; i++) {
        put(b, (struct finding){i, "network", "p", .number = 20000 + 10000 * (int)i});
        put(b, (struct finding){i, "names", "a", "1.2.3.4", "1.2.3.4"});
        put(b, (struct finding){i, "gpus", .value = i ? "none" : "4 x A100",
                                .key = i ? "none" : "4"});
    }
    put(b, (struct finding){3, "port", .problem = "none left"});
    char *text = NULL;
    size_t size;
    FILE *out = xmemstream(&text, &size);
    results_judge(b);
    results_table(b, out);
    xmemclose(out);
    ck_assert_str_eq(
        text, "  check       hosts   found\n"
              "! gpus        n1      4 x A100\n"
              "              n[2-4]  none\n"
              "  names       n[1-4]  1, equal\n"
              "! port        n4      see below\n"
              "  network     n[1-4]  0.02 to 0.05 ms to connect to the next host\n");
    free(text);
    results_destroy(b);
}
