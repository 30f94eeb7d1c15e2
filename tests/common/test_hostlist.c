#include "tests/support/suite.h"

#include "common/hostlist.h"
#include "common/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *join(const struct strv *names)
{
    char *text = xstrdup("");
    for (size_t i = 0; i < names->n; i++) {
        char *next = xasprintf("%s%s%s", text, i ? " " : "", names->v[i]);
        free(text);
        text = next;
    }
    return text;
}

/* What scontrol show hostnames (22.05) prints, and suffixes as of 23.11. */
static const struct {
    const char *list, *names;
} good[] = {
    {"n1", "n1"},
    {"n1,n2", "n1 n2"},
    {"n[1-3]", "n1 n2 n3"},
    {"n[01-03,10]", "n01 n02 n03 n10"},
    {"n[08-10]", "n08 n09 n10"},
    {"n[8-011]", "n8 n9 n10 n11"},
    {"n[001-3]", "n001 n002 n003"},
    {"[1-3]", "1 2 3"},
    {"n1-3", "n1-3"},
    {"n[1-2],m5,n[7]", "n1 n2 m5 n7"},
    {"n[1-2] m1\tm2\n", "n1 n2 m1 m2"},
    {"n[1-3],", "n1 n2 n3"},
    {",,n1", "n1"},
    {"n1,n1", "n1 n1"},
    {"r[1-2]n[1-2]", "r1n1 r1n2 r2n1 r2n2"},
    {"n[08-10]x[1-2]", "n08x1 n08x2 n09x1 n09x2 n10x1 n10x2"},
    {"r[1-2]c[01-02]n[0-1]",
     "r1c01n0 r1c01n1 r2c01n0 r2c01n1 r1c02n0 r1c02n1 r2c02n0 r2c02n1"},
    {"a[1-2,5]b[3-4]c[5,9]", "a1b3c5 a1b3c9 a2b3c5 a2b3c9 a5b3c5 a5b3c9 a1b4c5 a1b4c9 "
                             "a2b4c5 a2b4c9 a5b4c5 a5b4c9"},
    {"n[1-2]-ib", "n1-ib n2-ib"},
    {"m[2-3].cluster", "m2.cluster m3.cluster"},
    {"", ""},
};

LOOP_TEST(lists_expand_as_slurm_does, ARRAY_LEN(good))
{
    struct strv names = {0};
    struct ddp_err err = {""};
    ck_ok(hostlist_expand(good[_i].list, &names, &err), err);
    char *text = join(&names);
    ck_assert_str_eq(text, good[_i].names);
    free(text);
    strv_finish(&names);
}

static const struct {
    const char *list, *error;
} bad[] = {
    {"n[3-1]", "'n[3-1]': column 3: the range counts down from 3 to 1"},
    {"n[]", "'n[]': column 3: a number is wanted here, not ']'"},
    {"n[1-2", "'n[1-2': column 2: '[' is never closed"},
    {"m1,n1]", "'m1,n1]': column 6: ']' without '['"},
    {"n[a]", "'n[a]': column 3: a number is wanted here, not 'a'"},
    {"n[1-]", "'n[1-]': column 5: a number is wanted here, not ']'"},
    {"n[1[2]]", "'n[1[2]]': column 4: '[' inside brackets; numbers, '-' and ',' only"},
    {"n[0-65536]",
     "'n[0-65536]': column 3: a range of 65537 names; at most 65536 are allowed"},
    {"n[1-9999][1-9999]",
     "'n[1-9999][1-9999]': column 1: more than 1048576 names in one word"},
    {"n[1234567890123456789]",
     "'n[1234567890123456789]': column 21: a number of more than 18 digits"},
};

LOOP_TEST(bad_lists_are_rejected_with_their_column, ARRAY_LEN(bad))
{
    struct strv names = {0};
    struct ddp_err err = {""};
    ck_assert_int_eq(hostlist_expand(bad[_i].list, &names, &err), -1);
    ck_assert_str_eq(err.text, bad[_i].error);
    strv_finish(&names);
}

TEST(the_longest_range_is_65536_names)
{
    struct strv names = {0};
    struct ddp_err err = {""};
    ck_ok(hostlist_expand("n[0-65535]", &names, &err), err);
    ck_assert_uint_eq(names.n, 65536);
    strv_finish(&names);
}

static const struct {
    const char *names, *list;
} pressed[] = {
    {"n1 n2 n3 n10", "n[1-3,10]"},
    {"n01 n02 n03", "n[01-03]"},
    {"n01 n2", "n01,n2"},
    {"n9 n10 n11", "n[9-11]"},
    {"n09 n10", "n[09-10]"},
    {"n1", "n1"},
    {"login n1 n2 x", "login,n[1-2],x"},
    {"n2 n1", "n[2,1]"},
    {"n1-ib n2-ib n3-eth", "n[1-2]-ib,n3-eth"},
    {"r1n1 r1n2 r2n1", "r1n[1-2],r2n1"},
    {"10.0.0.1 10.0.0.2", "10.0.0.[1-2]"},
};

LOOP_TEST(lists_are_compressed_and_expanded, ARRAY_LEN(pressed))
{
    struct strv names = {0}, again = {0};
    struct ddp_err err = {""};
    ck_ok(hostlist_expand(pressed[_i].names, &names, &err), err);
    char *list = hostlist_compress(names.v, names.n);
    ck_assert_str_eq(list, pressed[_i].list);
    ck_ok(hostlist_expand(list, &again, &err), err);
    ck_assert_uint_eq(again.n, names.n);
    for (size_t i = 0; i < names.n; i++)
        ck_assert_str_eq(again.v[i], names.v[i]);
    free(list);
    strv_finish(&names);
    strv_finish(&again);
}
