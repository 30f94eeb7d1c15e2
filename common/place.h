/* common/place.h - can a result be written there: asked before the work, not after it */
#ifndef COMMON_PLACE_H
#define COMMON_PLACE_H

#include <stdbool.h>
#include <stdio.h>

enum place_use {
    PLACE_WRITTEN,  /* opened and written: a file, /dev/stdout, a pipe */
    PLACE_REPLACED, /* written aside and renamed: a file, and nothing that is no file,
                     * since root would have a device replaced by one */
    PLACE_FOLDER    /* files are made in it */
};

/* NULL, or why `path` cannot be used so: "Is a directory". A file that is not there yet
 * needs a folder that is. */
const char *place_refuses(const char *path, enum place_use use);

/* For writing, at its end or from its beginning; NULL, and why not. Nobody is waited for
 * who may read from a pipe some day. */
FILE *place_open(const char *path, bool append, const char **why);

#endif
