/* launcher/cli/cli.h - parses the command line into struct opts, by the table in
 * options.c
 *
 * Options precede the program; what follows its name belongs to the program. The
 * spellings of mpirun, mpiexec.hydra, torchrun and horovodrun are accepted, with one dash
 * or two, with underscores or dashes. Options cannot be abbreviated: a misplaced option
 * of the program is never mistaken for one of ddprun's.
 */
#ifndef LAUNCHER_CLI_CLI_H
#define LAUNCHER_CLI_CLI_H

#include "include/ddprun/err.h"
#include "launcher/opts.h"

/* Returns 0 to continue (launch, script, --show-env, --list-sites, --fetch-data), 1 after
 * --help or --version was printed (exit 0), -1 with one line in `err` (exit 2). `opts`
 * needs no initialization; call opts_finish() in all cases. */
int cli_parse(int argc, char **argv, struct opts *opts, struct ddp_err *err);
void opts_finish(struct opts *opts);

/* Warn about ignored options, and about options after the program that were probably
 * meant for ddprun. The program gets them, as it may have an option of that name. */
void cli_warn(const struct opts *opts);

/* "; options are also from PET_*: --nnodes=2" for those that are not on the command line;
 * malloc'ed, may be "". */
char *cli_origins(const struct opts *opts);

#endif
