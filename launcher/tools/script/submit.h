/* launcher/tools/script/submit.h - hand a script to the scheduler, get the job's number
 */
#ifndef LAUNCHER_TOOLS_SCRIPT_SUBMIT_H
#define LAUNCHER_TOOLS_SCRIPT_SUBMIT_H

#include "common/strv.h"
#include "include/ddprun/err.h"
#include "launcher/opts.h"

/* The command that reads a script from its standard input and prints the job's number;
 * `more` are the site's own words. Appended to `argv`. */
void submit_command(enum scheduler scheduler, const struct strv *more, struct strv *argv);

/* Runs it, for at most two minutes. Returns the job's number, which the caller frees, or
 * NULL with what the scheduler said first. */
char *submit(enum scheduler scheduler, const struct strv *argv, const char *script,
             struct ddp_err *err);

#endif
