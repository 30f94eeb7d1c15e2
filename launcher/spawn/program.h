/* launcher/spawn/program.h - which file a program's name means, and why it cannot be run
 *
 * Looked for once per node, not once per rank.
 */
#ifndef LAUNCHER_SPAWN_PROGRAM_H
#define LAUNCHER_SPAWN_PROGRAM_H

#include "include/ddprun/err.h"
#include "launcher/spawn/child.h"

enum {
    EXIT_USAGE = 2,
    EXIT_CANNOT_START = 125,
    EXIT_NOT_EXECUTABLE = 126,
    EXIT_NOT_FOUND = 127
};

/* Find `name` as a shell would: with a slash in it, it is a path (relative to `dir`),
 * else it is looked for in `path_env` (the ranks' PATH; NULL: the system's default).
 * Returns the path (malloc'ed), or NULL with the exit code and the line to show. `host`
 * is named in it unless it is NULL. */
char *program_find(const char *name, const char *dir, const char *path_env,
                   const char *host, int *code, struct ddp_err *err);

/* The line and the exit code for a child_spawn() that failed with `step` and errno. */
int program_failed(const char *name, const char *path, const char *dir, const char *host,
                   enum child_step step, struct ddp_err *err);

#endif
