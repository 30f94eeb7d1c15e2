/* launcher/tools/tool.h - options whose work is a program of its own
 *
 * `ddprun --script ...` executes ddprun-script in its place, as git does with its
 * commands: a launch loads none of this. The program gets the same command line, parses
 * it by the same table, and finds ddprun's own path in argv[0].
 */
#ifndef LAUNCHER_TOOLS_TOOL_H
#define LAUNCHER_TOOLS_TOOL_H

#include "include/ddprun/err.h"
#include "launcher/opts.h"

/* The work of the program; tool.c has its main(). Returns the exit code; -1 with `err`,
 * which is EXIT_USAGE. */
int tool_run(const struct opts *opts, char *const *argv, struct ddp_err *err);

#endif
