/* launcher/tools/fetch/fetch.h - --fetch-data: download a data set on the front end,
 * before the job
 *
 * Compute nodes often have no internet access. Downloads the files of a known data set
 * into a folder by curl(1): resumes an interrupted download, checks size and SHA-256, and
 * only then gives the file its name. So an existing file is correct and is not fetched
 * again.
 */
#ifndef LAUNCHER_TOOLS_FETCH_FETCH_H
#define LAUNCHER_TOOLS_FETCH_FETCH_H

#include "include/ddprun/err.h"
#include "launcher/opts.h"

/* Print a line per file on stdout. -1 with `err`: the first file that failed, and why. */
int fetch_data(const struct opts *opts, struct ddp_err *err);

#endif
