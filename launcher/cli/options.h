/* launcher/cli/options.h - the table of options
 *
 * Private to launcher/cli/: the parser and --help use it, a test compares the manual with
 * it. A new option is a member of struct opts and a row in options.c.
 */
#ifndef LAUNCHER_CLI_OPTIONS_H
#define LAUNCHER_CLI_OPTIONS_H

#include "launcher/cli/readers.h"

#include <stddef.h>

/* A row without names begins a --help topic with the name `arg`. */
extern const struct option options[];
extern const size_t options_len;

#endif
