/* common/output_path.c - see output_path.h */
#include "common/output_path.h"

#include "common/mem.h"
#include "common/scoped.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
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

/* What modes do not show: nothing can be created in /proc and /sys, or on a full file
 * system. */
static const char *device_refuses(const char *folder)
{
    struct statfs fs;
    if (statfs(folder, &fs) < 0)
        return NULL;
    if (fs.f_type == PROC_SUPER_MAGIC || fs.f_type == SYSFS_MAGIC)
        return strerror(EPERM);
    return fs.f_blocks > 0 && fs.f_bavail == 0 ? strerror(ENOSPC) : NULL;
}

/* The nearest directory above `path`, which is changed, that exists. */
static const char *folder_above(char *path)
{
    struct stat st;
    path = dirname(path);
    while (stat(path, &st) < 0 && errno == ENOENT && strcmp(path, ".") != 0)
        path = dirname(path);
    return path;
}

const char *output_path_check(const char *path, enum output_path_use use)
{
    struct stat st;
    size_t n = strlen(path);
    if (use == OUTPUT_PATH_FOLDER)
        return folder_refuses(path);
    bool there = stat(path, &st) == 0;
    if (!there && (errno != ENOENT || n == 0))
        return strerror(errno);
    if ((there && S_ISDIR(st.st_mode)) || (n > 0 && path[n - 1] == '/'))
        return strerror(EISDIR);
    if (there && use != OUTPUT_PATH_REPLACED)
        return access(path, W_OK) < 0 ? strerror(errno) : NULL;
    if (there && !S_ISREG(st.st_mode))
        return "it is no file, and would be replaced by one";
    OWNED char *copy = xstrdup(path);
    bool made = use == OUTPUT_PATH_MADE;
    const char *folder = made ? folder_above(copy) : dirname(copy),
               *why = folder_refuses(folder);
    if (!why && made)
        why = device_refuses(folder);
    return why;
}

/* The caller frees. */
static char *folder_of(const char *path)
{
    OWNED char *copy = xstrdup(path);
    return xstrdup(dirname(copy));
}

static bool may_follow(const char *folder, const struct stat *link)
{
    struct stat st;
    const mode_t shared = S_ISVTX | S_IWOTH;
    return link->st_uid == geteuid() ||
           (stat(folder, &st) == 0 &&
            ((st.st_mode & shared) != shared || st.st_uid == link->st_uid));
}

char *output_path_follow(const char *path, const char **why)
{
    enum { MOST = 40 }; /* as the kernel */
    OWNED char *at = xstrdup(path);
    struct stat st;
    char to[PATH_MAX];
    for (int i = 0; i < MOST; i++) {
        if (lstat(at, &st) < 0 || !S_ISLNK(st.st_mode))
            return xstrdup(at);
        OWNED char *folder = folder_of(at);
        bool may = may_follow(folder, &st);
        ssize_t n = may ? readlink(at, to, sizeof to - 1) : -1;
        if (n < 0) {
            *why = may ? strerror(errno)
                       : "it is a link of another user in a folder where all may write";
            return NULL;
        }
        to[n] = '\0';
        free(at);
        at = *to == '/' ? xstrdup(to) : xasprintf("%s/%s", folder, to);
    }
    *why = strerror(ELOOP);
    return NULL;
}

int output_path_fd(const char *path, int how)
{
    int flags = O_WRONLY | O_CREAT | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
    int fd = open(path, flags | how, 0666);
    if (fd >= 0) /* the flags that fcntl() can change */
        fcntl(fd, F_SETFL, how & O_APPEND);
    return fd;
}

const char *output_path_error(int error)
{
    return error == ENXIO ? "no process reads from this pipe" : strerror(error);
}

FILE *output_path_open(const char *path, bool append, const char **why)
{
    int fd = output_path_fd(path, append ? O_APPEND : O_TRUNC);
    FILE *f = fd < 0 ? NULL : fdopen(fd, append ? "a" : "w");
    *why = f ? NULL : output_path_error(errno);
    if (!f && fd >= 0)
        close(fd);
    return f;
}
