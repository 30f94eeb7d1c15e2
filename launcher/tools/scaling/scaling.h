/* launcher/tools/scaling/scaling.h - --scaling: measure the program at several numbers of
 * ranks
 *
 * Each size is a separate run of ddprun, one after the other, or, with --submit, a batch
 * job. The output of a run goes to a file; its rate, or its time, into the table.
 */
#ifndef LAUNCHER_TOOLS_SCALING_SCALING_H
#define LAUNCHER_TOOLS_SCALING_SCALING_H

#include "include/ddprun/err.h"
#include "launcher/opts.h"

/* Run all sizes and print the table. Returns the exit code: 0, or that of the run that
 * failed, whose last lines have been printed; -1 with `err` when nothing could be run or
 * the table not written. words[0] is ddprun's path. */
int scaling_run(const struct opts *opts, char *const *words, struct ddp_err *err);

/* Submit a batch job per size, or with --script alone print one script that runs all. */
int scaling_submit(const struct opts *opts, char *const *words, struct ddp_err *err);

#endif
