/* launcher/fetch/fetch.h - --fetch-data: a data set on the front end, before the job
 *
 * Compute nodes have no internet. On the front end this brings the files of a known data
 * set into a folder, by curl(1): resumed where an earlier try broke off, checked for size
 * and SHA-256, and given their names only then. So a file that is there is right, and
 * whoever calls it twice waits for nothing.
 */
#ifndef LAUNCHER_FETCH_FETCH_H
#define LAUNCHER_FETCH_FETCH_H

#include "include/ddprun/err.h"
#include "launcher/opts.h"

/* Prints a line per file on stdout. `err` is one line: the first file that could not be
 * had, and why. */
int fetch_data(const struct opts *opts, struct ddp_err *err);

#endif
