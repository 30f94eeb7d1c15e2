/* launcher/cli/cli.h - the command line into struct opts: by one table (options.c)
 *
 * Options stand before the program; what follows the program's name is its own. The
 * spellings of mpirun, mpiexec.hydra, torchrun and horovodrun are understood, with one
 * dash or two, with underscores or dashes. Nothing is abbreviated: an option that a
 * script meant for itself never becomes one of ours by its first letters.
 */
#ifndef LAUNCHER_CLI_CLI_H
#define LAUNCHER_CLI_CLI_H

#include "include/ddprun/err.h"
#include "launcher/opts.h"

/* Returns 0 when a program is to be launched (or --show-env or --list-sites stands
 * alone), 1 when all that was asked has been printed (--help, --version: exit 0), -1 with
 * one line in `err` (exit 2). `opts` is filled from zero; opts_finish() in any case. */
int cli_parse(int argc, char **argv, struct opts *opts, struct ddp_err *err);
void opts_finish(struct opts *opts);

/* Warns of options that were ignored, and of those behind the program that were most
 * likely meant for us: the program gets them all the same, as it may have an option of
 * that name. */
void cli_warn(const struct opts *opts);

#endif
