/* common/output_path.c - see output_path.h */
#include "common/output_path.h"

#include "common/mem.h"

#include <errno.h>
#include <fcntl.h>
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

const char *output_path_check(const char *path, enum output_path_use use)
{
    struct stat st;
    if (use == OUTPUT_PATH_FOLDER)
        return folder_refuses(path);
    bool there = stat(path, &st) == 0;
    if (there && S_ISDIR(st.st_mode))
        return strerror(EISDIR);
    if (there && use == OUTPUT_PATH_WRITTEN)
        return access(path, W_OK) < 0 ? strerror(errno) : NULL;
    if (there && !S_ISREG(st.st_mode))
        return "it is no file, and would be replaced by one";
    char *copy = xstrdup(path);
    const char *why = folder_refuses(dirname(copy));
    free(copy);
    return why;
}

FILE *output_path_open(const char *path, bool append, const char **why)
{
    int flags = O_WRONLY | O_CREAT | O_NONBLOCK | O_CLOEXEC;
    int fd = open(path, flags | (append ? O_APPEND : O_TRUNC), 0666);
    int now = fd < 0 ? -1 : fcntl(fd, F_GETFL);
    FILE *f = now >= 0 && fcntl(fd, F_SETFL, now & ~O_NONBLOCK) == 0
                  ? fdopen(fd, append ? "a" : "w")
                  : NULL;
    *why = f                ? NULL
           : errno == ENXIO ? "no process reads from this pipe"
                            : strerror(errno);
    if (!f && fd >= 0)
        close(fd);
    return f;
}
