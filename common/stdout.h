/* common/stdout.h - what was written to stdout has arrived, or the exit code says
 * otherwise
 *
 * exit() throws away what a full disk did not take, and says 0. */
#ifndef COMMON_STDOUT_H
#define COMMON_STDOUT_H

/* From here on a normal end writes out what is left on stdout, and where that fails says
 * so in one line in the name of `program`, a literal, and ends with EXIT_FAILURE. For a
 * main(), before whatever prints and exits by itself (argp's --help). */
void stdout_must_arrive(const char *program);

#endif
