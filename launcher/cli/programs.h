/* launcher/cli/programs.h - several programs in a job: prog1 : -np 2 prog2
 *
 * Private to launcher/cli/.
 */
#ifndef LAUNCHER_CLI_PROGRAMS_H
#define LAUNCHER_CLI_PROGRAMS_H

#include "launcher/cli/words.h"

/* Split opts->argv at each ':' that begins another program. */
int programs_find(struct opts *opts, struct ddp_err *err);

/* Read the programs of --app FILE: its lines are words of one command line with ':' in
 * between. Returns 1 after --help or --version. */
int programs_read_file(struct reading *r, struct opts *opts, struct ddp_err *err);

#endif
