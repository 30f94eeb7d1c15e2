/* launcher/cli/interpreter.h - chooses the interpreter of a script, for 'ddprun train.py'
 *
 * An executable script that begins with "#!" runs as it is. Any other .py, .sh or .jl
 * file gets an interpreter: Python of the active virtual or conda environment, else from
 * PATH. -m MODULE is run by Python.
 */
#ifndef LAUNCHER_CLI_INTERPRETER_H
#define LAUNCHER_CLI_INTERPRETER_H

#include "launcher/opts.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Prepends the interpreter to opts->argv if one is needed, and sets opts->interpreter to
 * its name and the reason. The file is read on this machine, in --wdir: a program that
 * exists on other hosts only is not changed. `get_env` is getenv, or a test's. */
void interpreter_choose(struct opts *opts, const char *(*get_env)(const char *name));

/* Is it the name of such a script? */
bool interpreter_knows(const char *name);
/* Where a program that is named by a path is on this machine; malloc'ed. */
char *interpreter_path(const struct opts *opts, const char *name);

/* Replace each program's words (common/apps.h) by those that `rewrite` appends. */
typedef void (*rewrite_fn)(struct opts *opts, char *const *words, size_t n,
                           struct strv *argv, void *arg);
void programs_rewrite(struct opts *opts, rewrite_fn rewrite, void *arg);

/* Has a folder of PATH (may be NULL) an executable file of this name? */
bool program_in_path(const char *path, const char *name);

#define NOT_IN_PATH SIZE_MAX

/* Which entry of PATH is `prefix`/bin, from 0; NOT_IN_PATH. `path` may be NULL. */
size_t interpreter_place(const char *path, const char *prefix);

#endif
