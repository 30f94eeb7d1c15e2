/* launcher/cli/defaults.h - options that are not on the command line
 *
 * Private to launcher/cli/. In order, a later one replaces an earlier one: the file
 * $XDG_CONFIG_HOME/ddprun/config (~/.config/ddprun/config), the file ddprun.ini in the
 * working directory, torchrun's PET_* variables, and the variable DDPRUN_OPTIONS.
 */
#ifndef LAUNCHER_CLI_DEFAULTS_H
#define LAUNCHER_CLI_DEFAULTS_H

#include "common/strv.h"
#include "include/ddprun/err.h"

/* `words` holds settings "name=value"; from the first word that begins with '-' on, it
 * holds the words of a command line. */
typedef int (*defaults_fn)(const char *origin, const struct strv *words, void *arg,
                           struct ddp_err *err);

#define DEFAULTS_PET "PET_*" /* the origin of options that are torchrun's */

/* Call `take` for each origin that has options, until it returns other than 0; returns
 * that, or -1 if a file cannot be read. */
int defaults_each(defaults_fn take, void *arg, struct ddp_err *err);

/* The same for DeepSpeed's variables of the ranks: "NAME=VALUE" in ~/.deepspeed_env and
 * ./.deepspeed_env, or what DS_ENV_FILE names; a later one replaces an earlier one. */
int defaults_deepspeed(defaults_fn take, void *arg, struct ddp_err *err);

#endif
