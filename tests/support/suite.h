/* tests/support/suite.h - main() and helpers of the unit tests
 *
 * A test program defines `Suite *suite(void)`; main() is in suite.c and runs it in fork
 * mode, so that a crash or a leak is attributed to its test.
 */
#ifndef TESTS_SUPPORT_SUITE_H
#define TESTS_SUPPORT_SUITE_H

#include "include/ddprun/err.h"

#include <check.h>

Suite *suite(void);

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
