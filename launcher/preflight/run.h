/* launcher/preflight/run.h - the output of a short command, and what a program really is
 *
 * For looks, which run in a process that may block and is killed when it takes too long.
 */
#ifndef LAUNCHER_PREFLIGHT_RUN_H
#define LAUNCHER_PREFLIGHT_RUN_H

#include "launcher/preflight/check.h"

/* stdout and stderr of `argv` (a path first, no search), started in `dir`, at most 256
 * KiB; malloc'ed. NULL when it cannot be started. */
char *run_output(const char *const *argv, char *const *env, const char *dir);

/* The file of the program that is asked about; NULL, after having said so if `aloud`,
 * when there is none. malloc'ed. */
char *program_path(const struct ask *ask, bool aloud);

/* What the first line of a script asks for; malloc'ed path, NULL: no script, or its
 * interpreter is not there. */
char *program_interpreter(const struct ask *ask, const char *path);

#endif
