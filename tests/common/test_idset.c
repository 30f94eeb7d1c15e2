#include "tests/support/suite.h"

#include "common/idset.h"
#include "common/mem.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    const char *text, *canonical, *error;
} cases[] = {
    {"0", "0", NULL},
    {"0-3,8", "0-3,8", NULL},
    {" 8 , 0-3\t", "0-3,8", NULL},
    {"3,2,1,0", "0-3", NULL},
    {"0-3,2-5,6", "0-6", NULL},
    {"1,3,5,2,4", "1-5", NULL},
    {"10-20,0-5,7", "0-5,7,10-20", NULL},
    {"5-5", "5", NULL},
    {"", NULL, "'': column 1: a number from 0 to 1073741823 is missing"},
    {"1,", NULL, "'1,': column 3: a number from 0 to 1073741823 is missing"},
    {"-1", NULL, "'-1': column 1: a number from 0 to 1073741823 is missing"},
    {"3-1", NULL, "'3-1': column 1: 3-1 counts down"},
    {"1;2", NULL, "'1;2': column 2: ';' is neither a number nor a comma"},
    {"99999999999", NULL,
     "'99999999999': column 1: a number from 0 to 1073741823 is missing"},
};

LOOP_TEST(sets_are_read_and_written, ARRAY_LEN(cases))
{
    struct idset set = {0};
    struct ddp_err err = {""};
    int rc = idset_parse(cases[_i].text, &set, &err);
    if (cases[_i].error) {
        ck_assert_int_eq(rc, -1);
        ck_assert_str_eq(err.text, cases[_i].error);
    } else {
        ck_ok(rc, err);
        char *text = idset_text(&set);
        ck_assert_str_eq(text, cases[_i].canonical);
        free(text);
    }
    idset_finish(&set);
}

/* Against the plainest set there is: an array of flags. */
LOOP_TEST(a_set_holds_what_was_added, 10)
{
    enum { N = 200 };
    bool in[N + 1] = {false};
    struct idset set = {0};
    srandom((unsigned)_i);
    for (int step = 0; step < 60; step++) {
        int lo = (int)(random() % N), hi = lo + (int)(random() % 8);
        hi = hi < N ? hi : N - 1;
        idset_add(&set, lo, hi);
        memset(in + lo, true, (size_t)(hi - lo + 1));
        long count = 0;
        size_t spans = 0;
        for (int id = 0; id < N; id++) {
            ck_assert_int_eq(idset_has(&set, id), in[id]);
            count += in[id];
            spans += in[id] && !in[id + 1];
        }
        ck_assert_int_eq(idset_count(&set), count);
        ck_assert_uint_eq(set.n, spans);
    }
    idset_finish(&set);
}
