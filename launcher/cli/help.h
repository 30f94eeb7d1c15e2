/* launcher/cli/help.h - --help: the usual options on one screen, the others by topic
 *
 * Private to launcher/cli/. Except for the list of usual options, printed from the table
 * in options.c.
 */
#ifndef LAUNCHER_CLI_HELP_H
#define LAUNCHER_CLI_HELP_H

#include "include/ddprun/err.h"

#include <stdio.h>

/* Print what there is about `topic`: NULL for the usual options and the topics, "all" for
 * every option, a topic's name, or an option's. Returns -1 when there is no such topic. */
int help_show(const char *topic, FILE *out, struct ddp_err *err);

#endif
