/* launcher/cli/spelling.h - matches option names
 *
 * Private to launcher/cli/. The names of an option are one string, separated by blanks,
 * without dashes; "fp8-*" stands for all names with that beginning.
 */
#ifndef LAUNCHER_CLI_SPELLING_H
#define LAUNCHER_CLI_SPELLING_H

#include <stdbool.h>
#include <stddef.h>

/* Is `name` (`len` bytes, in which '_' counts as '-') one of `names` (NULL: none)? */
bool spelling_is(const char *names, const char *name, size_t len);

#endif
