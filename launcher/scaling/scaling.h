/* launcher/scaling/scaling.h - --scaling: the same work with more and more ranks
 *
 * Each size is a ddprun of its own, run here one after the other, or, with --submit, each
 * a batch job. What a run says goes to a file; its rate, or its time, into the table.
 */
#ifndef LAUNCHER_SCALING_SCALING_H
#define LAUNCHER_SCALING_SCALING_H

#include "include/ddprun/err.h"
#include "launcher/opts.h"

/* Runs all sizes and prints the table. Returns the exit code: 0, or that of the run that
 * failed, whose last lines have been shown; -1 with one line in `err` when nothing could
 * be run, or the table not be written. */
int scaling_run(const struct opts *opts, struct ddp_err *err);

/* A batch job for each size, or with --script alone one script that runs them all. */
int scaling_submit(const struct opts *opts, char *const *words, struct ddp_err *err);

#endif
