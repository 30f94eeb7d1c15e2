#include "tests/support/suite.h"

#include "common/mem.h"
#include "launcher/script/template.h"
#include "launcher/script/walltime.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* --- templates ---------------------------------------------------------------------- */

static const char *find(const char *name, void *arg, struct ddp_err *err)
{
    if (strcmp(name, "loop") == 0)
        return "{{> loop}}\n";
    return strcmp(name, "tail") == 0  ? "tail of {{a}}\n{{> end}}\n"
           : strcmp(name, "end") == 0 ? "end\n"
                                      : NULL;
}

static const struct {
    const char *text, *result, *error;
} fills[] = {
    {"", "", NULL},
    {"plain\n\n", "plain\n\n", NULL},
    {"no newline", "no newline\n", NULL},
    {"x={{a}} y={{ a }}\n", "x=A y=A\n", NULL},
    {"x={{none}}\nkept\n", "kept\n", NULL}, /* no value: no line */
    {"{{a}} {{none}}\n", "", NULL},
    {"- {{three}} {{a}}\n", "- 1 A\n- 2 A\n- 3 A\n", NULL}, /* a line for each */
    {"{{#a}}\nyes {{a}}\n{{/a}}\n{{^a}}\nno\n{{/a}}\n", "yes A\n", NULL},
    {"{{#none}}\nyes\n{{/none}}\n{{^none}}\nno\n{{/none}}\n", "no\n", NULL},
    {"{{#a}}\n{{^a}}\nx\n{{/a}}\ny\n{{/a}}\n", "y\n", NULL},
    {"{{#none}}\n{{#a}}\nx\n{{/a}}\n{{/none}}\n", "", NULL},
    {"{{! a remark }}\nx\n", "x\n", NULL},
    {"{{> tail}}\n", "tail of A\nend\n", NULL},
    {"{{tricky}}\n", "{{a}} $x\n", NULL}, /* a value is not looked at again */
    {"a } b { c\n", "a } b { c\n", NULL},
    {"x\n  {{nodse}}\n", NULL, "t:2:3: unknown name 'nodse'"},
    {"{{#none}}\n{{wrong}}\n{{/none}}\n", NULL, "t:2:1: unknown name 'wrong'"},
    {"{{#wrong}}\n", NULL, "t:1:1: unknown name 'wrong'"},
    {"x {{a\n", NULL, "t:1:3: '{{' without '}}'"},
    {"{{#a}}\nx\n", NULL, "t:1:1: nothing closes 'a'"},
    {"x\n{{/a}}\n", NULL, "t:2:1: nothing open is called 'a'"},
    {"{{#a}}\n{{/b}}\n", NULL, "t:2:1: nothing open is called 'b'"},
    {"{{three}}{{three}}\n", NULL, "t:1:10: a second value of several lines 'three'"},
    {"{{> loop}}\n", NULL, "loop:1:1: templates within templates, at 'loop'"},
};

START_TEST(templates_are_filled_strictly)
{
    struct strv v = {0};
    strv_env_set(&v, "a", "A");
    strv_env_set(&v, "none", "");
    strv_env_set(&v, "three", "1\n2\n3");
    strv_env_set(&v, "tricky", "{{a}} $x");
    struct ddp_err err = {""};
    char *got = template_fill("t", fills[_i].text, &v, find, NULL, &err);
    if (fills[_i].result)
        ck_assert_msg(got && strcmp(got, fills[_i].result) == 0, "%s -> '%s' (%s)",
                      fills[_i].text, got ? got : "", err.text);
    else
        ck_assert_msg(!got && strstr(err.text, fills[_i].error), "%s -> %s",
                      fills[_i].text, err.text);
    free(got);
    strv_finish(&v);
}
END_TEST

/* --- times and sizes ------------------------------------------------------------------
 */

static const struct {
    const char *text;
    int64_t seconds;                      /* 0: refused */
    const char *slurm, *sge, *lsf, *said; /* or the complaint, in `slurm` */
} times[] = {
    {"90m", 5400, "01:30:00", "01:30:00", "01:30", "1h30m"},
    {"2h", 7200, "02:00:00", "02:00:00", "02:00", "2h"},
    {"1.5h", 5400, "01:30:00", "01:30:00", "01:30", "1h30m"},
    {"1d12h", 129600, "1-12:00:00", "36:00:00", "36:00", "1d12h"},
    {"36:00:00", 129600, "1-12:00:00", "36:00:00", "36:00", "1d12h"},
    {"1-12:00:00", 129600, "1-12:00:00", "36:00:00", "36:00", "1d12h"},
    {"61s", 61, "00:01:01", "00:01:01", "00:02", "1m1s"},
    {"100h", 360000, "4-04:00:00", "100:00:00", "100:00", "4d4h"},
    {"120", 0,
     "'120' is minutes for Slurm and LSF, seconds for Grid Engine and PBS; "
     "write 120m, 120s or 120h"},
    {"2:00", 0,
     "'2:00' is hours and minutes for LSF, minutes and seconds for the others; "
     "write 2:00:00 or 00:2:00"},
    {"", 0, "is not between 1s and"},
    {"2hours", 0, "'2hours' is no time; write 90m, 2h, 1d12h or 36:00:00"},
    {"2m1h", 0, "is no time"},
    {"-2h", 0, "is no time"},
    {"1:60:00", 0, "is no time"},
    {"1-24:00:00", 0, "is no time"},
    {"0x2h", 0, "is no time"},
    {"1e3h", 0, "is no time"},
    {"0h", 0, "is not between 1s and"},
    {"99999999d", 0, "is not between 1s and"},
};

START_TEST(times_have_units)
{
    struct ddp_err err = {""};
    int64_t s = 0;
    int rc = walltime_parse(times[_i].text, &s, &err);
    if (times[_i].seconds == 0) {
        ck_assert_msg(rc == -1 && strstr(err.text, times[_i].slurm), "%s: %s",
                      times[_i].text, err.text);
        return;
    }
    ck_assert_msg(rc == 0 && s == times[_i].seconds, "%s: %s, %" PRId64, times[_i].text,
                  err.text, s);
    char said[40];
    char *slurm = walltime_text(SCHED_SLURM, s), *sge = walltime_text(SCHED_SGE, s),
         *lsf = walltime_text(SCHED_LSF, s);
    walltime_say(s, said, sizeof said);
    ck_assert_str_eq(slurm, times[_i].slurm);
    ck_assert_str_eq(sge, times[_i].sge);
    ck_assert_str_eq(lsf, times[_i].lsf);
    ck_assert_str_eq(said, times[_i].said);
    free(slurm);
    free(sge);
    free(lsf);
}
END_TEST

static const struct {
    const char *text;
    int64_t mb;
} sizes[] = {
    {"512M", 512},  {"64G", 65536}, {"64GB", 65536}, {"64GiB", 65536}, {"1.5T", 1572864},
    {"64g", 65536}, {"64", -1},     {"", -1},        {"G", -1},        {"64K", -1},
    {"64Gigs", -1}, {"-64G", -1},   {"0G", -1},      {"64 G", -1},
};

START_TEST(sizes_have_units)
{
    struct ddp_err err = {""};
    int64_t mb = -1;
    int rc = memory_parse(sizes[_i].text, &mb, &err);
    ck_assert_msg(rc == (sizes[_i].mb < 0 ? -1 : 0) && mb == sizes[_i].mb,
                  "%s: %" PRId64 " %s", sizes[_i].text, mb, err.text);
}
END_TEST

Suite *suite(void)
{
    Suite *s = suite_create("script");
    TCase *t = tcase_create("script");
    tcase_add_loop_test(t, templates_are_filled_strictly, 0, ARRAY_LEN(fills));
    tcase_add_loop_test(t, times_have_units, 0, ARRAY_LEN(times));
    tcase_add_loop_test(t, sizes_have_units, 0, ARRAY_LEN(sizes));
    suite_add_tcase(s, t);
    return s;
}
