/* common/stdout.h - a stdout that is closed, or does not take the output
 *
 * exit() ignores output that a full disk did not take, and returns 0.
 */
#ifndef COMMON_STDOUT_H
#define COMMON_STDOUT_H

/* If 0, 1 or 2 are closed, keep our sockets from getting these numbers, as what is printed
 * would be sent. `out`: how stdout is opened, on /dev/null. */
void stdout_reserve(int out);

/* From now on a normal exit flushes stdout; if that fails, it prints one line in the name
 * of `program` (a literal) and exits with EXIT_FAILURE. A closed stdout is reserved:
 * its output is not wanted. Call it in main() before anything that prints and exits by
 * itself (argp's --help). */
void stdout_must_arrive(const char *program);

#endif
