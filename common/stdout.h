/* common/stdout.h - report a failed write to stdout in the exit code
 *
 * exit() ignores output that a full disk did not take, and returns 0.
 */
#ifndef COMMON_STDOUT_H
#define COMMON_STDOUT_H

/* From now on a normal exit flushes stdout; if that fails, it prints one line in the name
 * of `program` (a literal) and exits with EXIT_FAILURE. Call it in main() before anything
 * that prints and exits by itself (argp's --help). */
void stdout_must_arrive(const char *program);

#endif
