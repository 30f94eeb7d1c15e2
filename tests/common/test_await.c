/* The end of a child process: seen, or made. */
#include "common/await.h"
#include "common/duration.h"
#include "tests/support/suite.h"

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static pid_t child(int code)
{
    pid_t pid = fork();
    if (pid == 0) {
        while (code < 0)
            pause();
        _exit(code);
    }
    ck_assert_int_gt(pid, 0);
    return pid;
}

START_TEST(one_that_ends)
{
    int status = 0;
    ck_assert_int_eq(await_end(child(7), now_ms() + 20000, &status), 0);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 7);
}
END_TEST

START_TEST(one_that_does_not_is_killed)
{
    int status = 0;
    pid_t pid = child(-1);
    ck_assert_int_eq(await_end(pid, now_ms() + 20, &status), -1);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    ck_assert_int_eq(waitpid(pid, &status, 0), -1);
    ck_assert_int_eq(errno, ECHILD);
}
END_TEST

Suite *suite(void)
{
    Suite *s = suite_create("await");
    TCase *t = tcase_create("await");
    tcase_add_test(t, one_that_ends);
    tcase_add_test(t, one_that_does_not_is_killed);
    suite_add_tcase(s, t);
    return s;
}
