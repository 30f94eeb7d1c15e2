/* tests/support/golden.h - compare a text with a file of expected output
 *
 * The files are in tests/data (GOLDEN_DIR, set by meson). UPDATE_GOLDEN=1 rewrites them;
 * git then shows the changes.
 */
#ifndef TESTS_SUPPORT_GOLDEN_H
#define TESTS_SUPPORT_GOLDEN_H

/* Fails the test at the first line that differs. */
void golden_check(const char *name, const char *text);

#endif
