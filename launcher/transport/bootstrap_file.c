/* launcher/transport/bootstrap_file.c - see bootstrap_file.h */
#include "launcher/transport/bootstrap_file.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/text_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { READ_MS = 5000 };
#define NAME ".ddprun-"

/* An absolute path: another host opens it, from any directory. */
static char *bootstrap_path(void)
{
    const char *home = getenv("HOME");
    if (home && *home == '/')
        return xasprintf("%s/" NAME "XXXXXX", home);
    char *here = getcwd(NULL, 0);
    char *path = xasprintf("%s/" NAME "XXXXXX", here ? here : "");
    free(here);
    return path;
}

char *bootstrap_file_write(const char *text, struct ddp_err *err)
{
    char *path = bootstrap_path();
    int fd = mkostemp(path, O_CLOEXEC); /* 0600 */
    size_t n = strlen(text);
    if (fd < 0) {
        err_errno(
            err,
            "cannot write the bootstrap file '%s' for agents (--start ssh needs none)",
            path);
        free(path);
        return NULL;
    }
    ssize_t done = write(fd, text, n);
    if (done >= 0 && done != (ssize_t)n)
        errno = ENOSPC; /* a short write of so few bytes: the disk is full */
    if (close(fd) < 0 || done != (ssize_t)n) {
        err_errno(err, "cannot write the bootstrap file '%s' for agents", path);
        unlink(path);
        free(path);
        return NULL;
    }
    return path;
}

int bootstrap_file_read(const char *path, struct bootstrap *s, struct ddp_err *err)
{
    int fd = text_file_open_private(path, err);
    if (fd < 0)
        return errno == ENOENT
                   ? err_errno(err,
                               "cannot read the bootstrap file '%s': is the home "
                               "directory not shared? --start ssh needs none",
                               path)
                   : -1;
    int rc = bootstrap_read(fd, now_ms() + READ_MS, s, err);
    if (rc == 0 && strncmp(basename(path), NAME, strlen(NAME)) == 0)
        unlink(path);
    close(fd);
    return rc;
}
