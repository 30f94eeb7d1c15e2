/* launcher/cli/suggest.h - for a misspelt option, the nearest one
 *
 * Private to launcher/cli/.
 */
#ifndef LAUNCHER_CLI_SUGGEST_H
#define LAUNCHER_CLI_SUGGEST_H

#include "include/ddprun/err.h"

/* Sets `err` to a line about an unknown option, with the nearest one. Returns -1. */
int suggest_option(const char *word, struct ddp_err *err);

#endif
