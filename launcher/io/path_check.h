/* launcher/io/path_check.h - files that the launcher will write, before anything is started
 */
#ifndef LAUNCHER_IO_PATH_CHECK_H
#define LAUNCHER_IO_PATH_CHECK_H

#include "common/strv.h"
#include "include/ddprun/err.h"

/* Can all these files, with their folders, be created and written, as far as can be
 * checked in advance? Creates nothing, empties `paths`. A file system that does not
 * answer in 5 s is warned of. -1: "OPTION: cannot write 'PATH': ...". `value` is the
 * option's. */
int path_check(struct strv *paths, const char *option, const char *value,
               struct ddp_err *err);

/* Create the folders of this file. Errors are left for open() to report. */
void path_make_folders(char *path);

#endif
