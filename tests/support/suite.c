/* tests/support/suite.c - see suite.h */
#include "tests/support/suite.h"

#include "common/mem.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static Suite *cases;
static SFun begin_case, end_case;

void suite_fixture(SFun begin, SFun end)
{
    begin_case = begin;
    end_case = end;
}

void suite_add(const TTest *test, int times, int seconds)
{
    if (!cases)
        cases = suite_create(program_invocation_short_name);
    TCase *t = tcase_create(test->name);
    tcase_set_timeout(t, seconds);
    tcase_add_checked_fixture(t, begin_case, end_case);
    tcase_add_loop_test(t, test, 0, times);
    suite_add_tcase(cases, t);
}

void suite_mark(const char *file, int line)
{
    static _Atomic int marks;
    if (marks < 1000 && marks++ < 1000)
        (_mark_point)(file, line);
}

int main(void)
{
    SRunner *r = srunner_create(cases);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r), ran = srunner_ntests_run(r);
    srunner_free(r);
    return failed > 0 || ran == 0;
}

static char *made[16];
static int nmade;

static void remove_made(void)
{
    while (nmade > 0) {
        char *command = xasprintf("rm -rf '%s'", made[--nmade]);
        if (system(command) != 0)
            perror(command);
        free(command);
        free(made[nmade]);
    }
}

char *temp_dir(void)
{
    const char *base = getenv("TMPDIR");
    char *path = xasprintf("%s/ddprun-test-XXXXXX", base ? base : "/tmp");
    ck_assert_ptr_nonnull(mkdtemp(path));
    if (nmade == 0)
        atexit(remove_made);
    ck_assert_int_lt(nmade, (int)ARRAY_LEN(made));
    made[nmade++] = xstrdup(path);
    return path;
}

void put_file(const char *path, const char *text)
{
    char *above = xstrdup(path);
    for (char *at = strchr(above + 1, '/'); at; at = strchr(at + 1, '/')) {
        *at = '\0';
        mkdir(above, 0777);
        *at = '/';
    }
    free(above);
    FILE *f = fopen(path, "we");
    ck_assert_msg(f && fputs(text, f) >= 0 && fclose(f) == 0, "%s", path);
}

char *temp_file(const char *name, const char *text)
{
    char *dir = temp_dir(), *path = xasprintf("%s/%s", dir, name);
    put_file(path, text);
    free(dir);
    return path;
}
