/* launcher/transport/program.h - find a program, and explain why it cannot run
 *
 * Searched once per node, not once per rank.
 */
#ifndef LAUNCHER_TRANSPORT_PROGRAM_H
#define LAUNCHER_TRANSPORT_PROGRAM_H

#include "include/ddprun/err.h"
#include "launcher/transport/child.h"

#include <stdbool.h>

enum {
    EXIT_USAGE = 2,
    EXIT_NO_BOOTSTRAP = 120, /* of an agent: its starter has passed it nothing */
    EXIT_CANNOT_START = 125,
    EXIT_NOT_EXECUTABLE = 126,
    EXIT_NOT_FOUND = 127
};

/* Find `name` as a shell would: with a slash it is a path (relative to `dir`), else it is
 * searched in `path_env` (the ranks' PATH; NULL: the system's default). Returns the path
 * (malloc'ed), or NULL with the exit code and the error line, with `host` unless NULL. */
char *program_find(const char *name, const char *dir, const char *path_env,
                   const char *host, int *code, struct ddp_err *err);

/* Error line and exit code for a child_spawn() that failed with `step` and errno. */
int program_failed(const char *name, const char *path, const char *dir, const char *host,
                   enum child_step step, struct ddp_err *err);

/* Why the script `name` at `path` would not run, as known before: its interpreter is not
 * there, or its lines end in CR LF. malloc'ed; NULL: nothing is wrong, or it is none. */
char *program_script_trouble(const char *path, const char *name);

/* Does this path or name have the name of a Python interpreter: python, python3.11? */
bool program_is_python(const char *path);

#endif
