/* launcher/io/path_check.c - see path_check.h */
#include "launcher/io/path_check.h"

#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/offload.h"

#include <errno.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#define LOG_SUBSYS "output"

enum { CHECK_MS = 5000 };

/* What directory modes do not show: nothing can be created in /proc and /sys, or on a
 * full file system. 0, or errno. */
static int device_trouble(const char *folder)
{
    struct statfs fs;
    if (statfs(folder, &fs) < 0)
        return 0;
    if (fs.f_type == PROC_SUPER_MAGIC || fs.f_type == SYSFS_MAGIC)
        return EPERM;
    return fs.f_blocks > 0 && fs.f_bavail == 0 ? ENOSPC : 0;
}

/* Can a file be created in `folder`, or `folder` itself: checks the nearest existing
 * parent. 0, or errno. */
static int folder_trouble(const char *folder)
{
    char *path = xstrdup(folder);
    struct stat st;
    int why = 0;
    while (stat(path, &st) < 0 && errno == ENOENT && strcmp(path, ".") != 0) {
        char *slash = strrchr(path, '/');
        if (slash == path)
            strcpy(path, "/");
        else if (slash)
            *slash = '\0';
        else
            strcpy(path, "."); /* the name was not empty */
    }
    if (stat(path, &st) < 0)
        why = errno;
    else if (!S_ISDIR(st.st_mode))
        why = ENOTDIR;
    else if (access(path, W_OK | X_OK) < 0)
        why = errno;
    else
        why = device_trouble(path);
    free(path);
    return why;
}

/* The same for one file; `*folder` caches the last folder that passed. */
static int path_trouble(const char *path, char **folder)
{
    struct stat st;
    if (stat(path, &st) == 0)
        return S_ISDIR(st.st_mode) ? EISDIR : access(path, W_OK) < 0 ? errno : 0;
    const char *slash = strrchr(path, '/');
    char *above = slash == path ? xstrdup("/")
                  : slash       ? xstrndup(path, (size_t)(slash - path))
                                : xstrdup(".");
    int why = *folder && strcmp(*folder, above) == 0 ? 0 : folder_trouble(above);
    free(*folder);
    *folder = above;
    return why;
}

struct checking {
    struct strv paths;  /* owned: freed by check_paths() */
    const char *option; /* a literal */
    int rc;
    struct ddp_err err;
};

static void check_paths(void *copy)
{
    struct checking *c = copy;
    char *folder = NULL;
    for (size_t i = 0; i < c->paths.n && c->rc == 0; i++) {
        int why = path_trouble(c->paths.v[i], &folder);
        if (why)
            c->rc = err_set(&c->err, "%s: cannot write '%s': %s", c->option,
                            c->paths.v[i], strerror(why));
    }
    free(folder);
    strv_finish(&c->paths);
}

int path_check(struct strv *paths, const char *option, const char *value,
               struct ddp_err *err)
{
    struct checking c = {.paths = *paths, .option = option};
    *paths = (struct strv){0};
    struct offload *a = offload_begin(check_paths, &c, sizeof c, err);
    if (!a) {
        strv_finish(&c.paths);
        return -1;
    }
    const struct checking *done = offload_wait(a, CHECK_MS);
    if (!done)
        log_warn("%s: no answer about '%s' in %d s (stalled file system?)", option, value,
                 CHECK_MS / 1000);
    int rc = done && done->rc < 0 ? err_set(err, "%s", done->err.text) : 0;
    offload_end(a);
    return rc;
}

void path_make_folders(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0777); /* open() reports the error better */
        *slash = '/';
    }
}
