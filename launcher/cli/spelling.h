/* launcher/cli/spelling.h - matches option names, and suggests the nearest one
 *
 * Private to launcher/cli/. The names of an option are one string, separated by blanks,
 * without dashes.
 */
#ifndef LAUNCHER_CLI_SPELLING_H
#define LAUNCHER_CLI_SPELLING_H

#include "include/ddprun/err.h"

#include <stdbool.h>
#include <stddef.h>

/* Is `name` (`len` bytes, in which '_' counts as '-') one of `names` (NULL: none)? */
bool spelling_is(const char *names, const char *name, size_t len);

/* Sets `err` to a line about an unknown option, with the nearest one. Returns -1. */
int spelling_unknown(const char *word, struct ddp_err *err);

#endif
