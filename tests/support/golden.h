/* tests/support/golden.h - compare a text with the file that holds what it should be
 *
 * The files lie in tests/data (GOLDEN_DIR, given by meson). UPDATE_GOLDEN=1 writes them
 * anew; what has changed is then seen by git.
 */
#ifndef TESTS_SUPPORT_GOLDEN_H
#define TESTS_SUPPORT_GOLDEN_H

/* Fails the test at the first line that differs. */
void golden_check(const char *name, const char *text);

#endif
