#include "tests/support/suite.h"

#include "common/err.h"

#include <errno.h>
#include <string.h>

TEST(set_fills_and_returns_minus_one)
{
    struct ddp_err err = {""};
    ck_assert_int_eq(err_set(&err, "unknown policy '%s'", "x"), -1);
    ck_assert_str_eq(err.text, "unknown policy 'x'");
}

TEST(errno_adds_the_reason_and_keeps_errno)
{
    struct ddp_err err = {""};
    errno = ENOENT;
    err_errno(&err, "cannot open '%s'", "f");
    ck_assert_str_eq(err.text, "cannot open 'f': No such file or directory");
    ck_assert_int_eq(errno, ENOENT);
}

TEST(a_limit_that_stops_a_start_is_named)
{
    struct ddp_err err = {""};
    errno = EAGAIN; /* fork() at the limit */
    err_spawn(&err, "cannot run '%s'", "f");
    ck_assert_str_eq(err.text, "cannot run 'f': too many processes; see 'ulimit -u', "
                               "or pids.max of the cgroup");
    ck_assert_int_eq(errno, EAGAIN);
    errno = EMFILE;
    err_spawn(&err, "cannot run '%s'", "f");
    ck_assert_str_eq(err.text, "cannot run 'f': Too many open files; see 'ulimit -n'");
}

TEST(prefix_goes_in_front)
{
    struct ddp_err err = {"bad slot count"};
    err_prefix(&err, "line %d", 3);
    ck_assert_str_eq(err.text, "line 3: bad slot count");
}

TEST(long_texts_are_cut_not_overrun)
{
    struct ddp_err err;
    char big[2000];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    err_set(&err, "%s", big);
    ck_assert_uint_eq(strlen(err.text), sizeof err.text - 1);
    err_prefix(&err, "%s", big);
    ck_assert_uint_eq(strlen(err.text), sizeof err.text - 1);
}

TEST(the_middle_of_a_long_text_is_left_out)
{
    struct ddp_err err;
    char path[4097];
    memset(path, 'x', sizeof path - 1);
    path[sizeof path - 1] = '\0';
    for (int i = 0; i < 400; i++) /* characters of two bytes */
        memcpy(path + 100 + 2 * i + 1, "\xc3\xbc", 2);
    errno = ENAMETOOLONG;
    err_errno(&err, "cannot open '%s'", path);
    err_prefix(&err, "line %d", 3);
    const char *dots = strstr(err.text, "...");
    ck_assert_int_eq(strncmp(err.text, "line 3: cannot open 'xxx", 24), 0);
    ck_assert_ptr_nonnull(dots);
    ck_assert_int_eq(dots[-1], '\xbc');
    ck_assert_str_eq(dots + strlen(dots) - 23, "xx': File name too long");
}

TEST(an_error_may_be_ignored)
{
    ck_assert_int_eq(err_set(NULL, "x"), -1);
    ck_assert_int_eq(err_errno(NULL, "x"), -1);
    ck_assert_int_eq(err_prefix(NULL, "x"), -1);
}
