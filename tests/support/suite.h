/* tests/support/suite.h - main() and helpers of the unit tests
 *
 * A test program consists of its cases; main() is in suite.c and runs each in a process
 * of its own, so that a crash or a leak is attributed to its case. CK_RUN_CASE=NAME runs
 * one.
 */
#ifndef TESTS_SUPPORT_SUITE_H
#define TESTS_SUPPORT_SUITE_H

#include "include/ddprun/err.h"

#include <check.h>

/* Only for hangs: a busy machine needs many times what an idle one does. A file may
 * define its own before it includes this one; its `timeout` in meson.build, times 6, is
 * to be longer. */
#ifndef CASE_SECONDS
#define CASE_SECONDS 170
#endif

/* A case: TEST(name) { ... }. */
#define TEST(name) LOOP_TEST(name, 1)
/* `times` cases, with the int _i from 0 on. */
#define LOOP_TEST(name, times)                                       \
    static void name(int _i);                                        \
    SUITE_ENTRY(name)                                                \
    {                                                                \
        static const TTest test = {#name, name, __FILE__, __LINE__}; \
        suite_add(&test, (times), CASE_SECONDS);                     \
    }                                                                \
    static void name(CK_ATTRIBUTE_UNUSED int _i)
/* Runs `begin` before, and `end`, if not NULL, after each of the cases that follow in the
 * file. */
#define FIXTURE(begin, end)            \
    SUITE_ENTRY(begin)                 \
    {                                  \
        suite_fixture((begin), (end)); \
    }

/* A function that is called before main(), in the order of the lines. */
#define SUITE_ENTRY(name) \
    __attribute__((constructor(1000 + __LINE__))) static void name##_entry(void)
void suite_add(const TTest *test, int times, int seconds);
void suite_fixture(SFun begin, SFun end);

/* What each assertion calls that holds: only the first of a case are written to check's
 * file, which says where a crash was. All 800,000 of launcher/plan cost 9 s of CPU time
 * with AddressSanitizer. */
#define _mark_point(file, line) suite_mark(file, line)
void suite_mark(const char *file, int line);

/* Fails the test with the error text when `rc` is not 0. */
#define ck_ok(rc, err) ck_assert_msg((rc) == 0, "%s", (err).text)

/* A fresh directory below $TMPDIR; removed with its contents when the test process ends.
 * The caller frees the text. */
char *temp_dir(void);

/* Writes the file anew, and makes the directories above it. */
void put_file(const char *path, const char *text);
/* The path of a new one, alone in a directory of temp_dir(); the caller frees the text.
 */
char *temp_file(const char *name, const char *text);

#endif
