/* A command that is run for its output: what is read, and what ends it. */
#include "common/helper.h"
#include "common/mem.h"
#include "tests/support/suite.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LONG_MS = 60000, SOON_MS = 20 };

static const struct {
    const char *script;
    bool err_too;
    size_t most;
    const char *said;
    int code;
} ends[] = {
    {"echo a; echo b >&2; exit 7", false, 100, "a\n", 7},
    {"echo a; echo b >&2", true, 100, "a\nb\n", 0},
    {"cat; echo end", false, 100, "end\n", 0}, /* nothing to read */
    {"printf 123456789; exit 1", false, 4, "1234", 1},
    {":", false, 4, "", 0},
    {"yes | head -c 50000", false, 20000, NULL, 0}, /* more than is heard at once */
};

LOOP_TEST(a_helper_that_ends, ARRAY_LEN(ends))
{
    char *said;
    size_t n;
    int status = 0;
    const char *argv[] = {"sh", "-c", ends[_i].script, NULL};
    struct helper h = {.argv = argv,
                       .err_too = ends[_i].err_too,
                       .answer_ms = LONG_MS,
                       .most = ends[_i].most};
    ck_assert_int_eq(helper_ask(&h, &said, &n, &status), 0);
    if (ends[_i].said)
        ck_assert_str_eq(said, ends[_i].said);
    else
        ck_assert_uint_eq(n, ends[_i].most);
    ck_assert_uint_eq(n, strlen(said));
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == ends[_i].code);
    free(said);
}

TEST(a_helper_that_writes_much_and_reads)
{
    char *said;
    size_t n;
    int status = -1, in[2];
    const char *argv[] = {"sh", "-c", "read x; yes $x | head -c 100000", NULL};
    struct helper h = {
        .argv = argv, .reads = true, .answer_ms = LONG_MS, .most = 1 << 20};
    ck_assert_int_eq(pipe(in), 0);
    h.in = in[0];
    ck_assert_int_eq(write(in[1], "abc\n", 4), 4);
    ck_assert_int_eq(helper_ask(&h, &said, &n, &status), 0);
    ck_assert_uint_eq(n, 100000);
    ck_assert_int_eq(strncmp(said, "abc\nabc\n", 8), 0);
    close(in[0]);
    close(in[1]);
    free(said);
}

static const char *const endless[] = {"exec sleep 300", "exec yes"};

LOOP_TEST(a_helper_that_does_not_end_is_killed, ARRAY_LEN(endless))
{
    char *said;
    size_t n;
    int status = 0;
    const char *argv[] = {"sh", "-c", endless[_i], NULL};
    struct helper h = {.argv = argv, .answer_ms = SOON_MS, .most = 100};
    ck_assert_int_eq(helper_ask(&h, &said, &n, &status), -1);
    ck_assert_int_eq(errno, ETIMEDOUT);
    ck_assert(_i > 0 || n == 0);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    ck_assert_int_eq(waitpid(-1, &status, 0), -1);
    ck_assert_int_eq(errno, ECHILD);
    free(said);
}

/* The write end of `fd`'s pipe is held by all that it has started. */
TEST(what_a_helper_has_started_is_killed_with_it)
{
    char *said, byte;
    size_t n;
    int status = 0, held[2];
    const char *argv[] = {"sh", "-c", "sleep 300; :", NULL};
    struct helper h = {.argv = argv, .group = true, .answer_ms = SOON_MS, .most = 100};
    ck_assert_int_eq(pipe(held), 0);
    ck_assert_int_eq(helper_ask(&h, &said, &n, &status), -1);
    ck_assert_int_eq(errno, ETIMEDOUT);
    close(held[1]);
    ck_assert_int_eq(read(held[0], &byte, 1), 0);
    close(held[0]);
    free(said);
}

TEST(a_helper_that_prints_too_much_is_killed_at_once)
{
    char *said;
    size_t n;
    int status = 0;
    const char *argv[] = {"yes", NULL};
    struct helper h = {
        .argv = argv, .group = true, .answer_ms = LONG_MS, .most = 100, .at_most = true};
    ck_assert_int_eq(helper_ask(&h, &said, &n, &status), -1);
    ck_assert_int_eq(errno, EFBIG);
    ck_assert_uint_eq(n, 100);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    free(said);
}

TEST(a_missing_helper)
{
    char *said;
    size_t n;
    int status = 0;
    const char *argv[] = {"/nonesuch/program", NULL};
    struct helper h = {.argv = argv, .answer_ms = LONG_MS, .most = 100};
    ck_assert_int_eq(helper_ask(&h, &said, &n, &status), -1);
    ck_assert_int_eq(errno, ENOENT);
    ck_assert_ptr_null(said);
}
