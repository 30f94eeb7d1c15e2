/* launcher/cli/interpreter.h - what runs a script: 'ddprun train.py' as torchrun runs it
 *
 * A script that is executable and begins with "#!" runs as it is. Any other .py, .sh or
 * .jl file gets the interpreter that its user would take: of the active virtual or conda
 * environment, else of PATH. -m MODULE is python's.
 */
#ifndef LAUNCHER_CLI_INTERPRETER_H
#define LAUNCHER_CLI_INTERPRETER_H

#include "launcher/opts.h"

/* Puts the interpreter in front of opts->argv where one is needed, and says in
 * opts->interpreter which and why. Looks at the file here, in --wdir: a program that is
 * only on other hosts stays as it is. `get_env` is getenv, or a test's. */
void interpreter_choose(struct opts *opts, const char *(*get_env)(const char *name));

#endif
