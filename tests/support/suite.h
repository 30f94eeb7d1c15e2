/* tests/support/suite.h - what every unit test program shares
 *
 * A test program defines `Suite *suite(void)`; main() is in suite.c and runs it in fork
 * mode, so that a crash or a leak is pinned to its own test.
 */
#ifndef TESTS_SUPPORT_SUITE_H
#define TESTS_SUPPORT_SUITE_H

#include "include/ddprun/err.h"

#include <check.h>

Suite *suite(void);

/* Fails the test with the error text when `rc` is not 0. */
#define ck_ok(rc, err) ck_assert_msg((rc) == 0, "%s", (err).text)

/* A fresh directory below $TMPDIR; removed with all it holds when the test process ends.
 * The text is the caller's to free. */
char *temp_dir(void);

#endif
