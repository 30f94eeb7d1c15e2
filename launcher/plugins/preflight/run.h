/* launcher/plugins/preflight/run.h - run a short command; locate the program
 *
 * For checks: these calls may block; the probe kills a check that takes too long.
 */
#ifndef LAUNCHER_PLUGINS_PREFLIGHT_RUN_H
#define LAUNCHER_PLUGINS_PREFLIGHT_RUN_H

#include "launcher/plugins/preflight/check.h"

/* stdout and stderr of `argv` (argv[0] is a path, PATH is not searched), started in
 * `dir`; at most 256 KiB, malloc'ed. NULL when it cannot be started. */
char *run_output(const char *const *argv, char *const *env, const char *dir);

/* The path of the job's program, malloc'ed; NULL when it is not found, which is reported
 * as a problem if `report`. */
char *program_path(const struct check_ctx *ctx, bool report);

/* The path of a script's interpreter (its #! line), malloc'ed; NULL: no script, or its
 * interpreter is not found; if `report`, one that env(1) would not find is a problem. */
char *program_interpreter(const struct check_ctx *ctx, const char *path, bool report);

#endif
