/* common/place.c - see place.h */
#include "common/place.h"

#include "common/mem.h"

#include <errno.h>
#include <libgen.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *folder_refuses(const char *path)
{
    struct stat st;
    if (stat(path, &st) < 0)
        return strerror(errno);
    if (!S_ISDIR(st.st_mode))
        return strerror(ENOTDIR);
    return access(path, W_OK | X_OK) < 0 ? strerror(errno) : NULL;
}

const char *place_refuses(const char *path, enum place_use use)
{
    struct stat st;
    if (use == PLACE_FOLDER)
        return folder_refuses(path);
    bool there = stat(path, &st) == 0;
    if (there && S_ISDIR(st.st_mode))
        return strerror(EISDIR);
    if (there && use == PLACE_WRITTEN)
        return access(path, W_OK) < 0 ? strerror(errno) : NULL;
    if (there && !S_ISREG(st.st_mode))
        return "it is no file, and would be replaced by one";
    char *copy = xstrdup(path);
    const char *why = folder_refuses(dirname(copy));
    free(copy);
    return why;
}
