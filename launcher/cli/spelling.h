/* launcher/cli/spelling.h - names of options as people write them
 *
 * Private to the front. One that is known under several names has them in one string,
 * separated by blanks, without dashes.
 */
#ifndef LAUNCHER_CLI_SPELLING_H
#define LAUNCHER_CLI_SPELLING_H

#include "include/ddprun/err.h"

#include <stdbool.h>
#include <stddef.h>

/* Is `name` (`len` bytes, in which '_' counts as '-') one of `names` (NULL: none)? */
bool spelling_is(const char *names, const char *name, size_t len);

/* The line about an option that nobody has, with the one that it may have been meant to
 * be. Returns -1. */
int spelling_unknown(const char *word, struct ddp_err *err);

#endif
