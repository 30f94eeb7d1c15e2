/* common/output_path.h - check that a result can be written, before computing it */
#ifndef COMMON_OUTPUT_PATH_H
#define COMMON_OUTPUT_PATH_H

#include <stdbool.h>
#include <stdio.h>

enum output_path_use {
    OUTPUT_PATH_WRITTEN,  /* opened and written: a file, /dev/stdout, a pipe */
    OUTPUT_PATH_MADE,     /* the same, and its directories are created */
    OUTPUT_PATH_REPLACED, /* written to a temporary file and renamed: regular files only,
                             since root could replace a device by one */
    OUTPUT_PATH_FOLDER    /* files are created in it */
};

/* NULL, or why `path` cannot be used like this: "Is a directory". Unless it is MADE, a
 * new file needs an existing directory. */
const char *output_path_check(const char *path, enum output_path_use use);

/* Open for appending or for overwriting; NULL, and why not. Does not wait for the reader
 * of a FIFO. */
FILE *output_path_open(const char *path, bool append, const char **why);

#endif
