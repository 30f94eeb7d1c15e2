/* common/output_path.h - can a result be written there: asked before the work, not after
 * it */
#ifndef COMMON_OUTPUT_PATH_H
#define COMMON_OUTPUT_PATH_H

#include <stdbool.h>
#include <stdio.h>

enum output_path_use {
    OUTPUT_PATH_WRITTEN,  /* opened and written: a file, /dev/stdout, a pipe */
    OUTPUT_PATH_REPLACED, /* written aside and renamed: a file, and nothing that is no
                           * file, since root would have a device replaced by one */
    OUTPUT_PATH_FOLDER    /* files are made in it */
};

/* NULL, or why `path` cannot be used so: "Is a directory". A file that is not there yet
 * needs a folder that is. */
const char *output_path_check(const char *path, enum output_path_use use);

/* For writing, at its end or from its beginning; NULL, and why not. Nobody is waited for
 * who may read from a pipe some day. */
FILE *output_path_open(const char *path, bool append, const char **why);

#endif
