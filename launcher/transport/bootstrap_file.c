/* launcher/transport/bootstrap_file.c - see bootstrap_file.h */
#include "launcher/transport/bootstrap_file.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/offload.h"
#include "common/text_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ms; the launcher's event loop waits for both of the latter */
enum { READ_MS = 5000, WRITE_MS = 5000, REMOVE_MS = 1000 };
#define NAME ".ddprun-"
#define HINT "--start ssh needs none"

/* An absolute path: another host opens it, from any directory. */
static char *bootstrap_path(void)
{
    const char *home = getenv("HOME");
    if (home && *home == '/')
        return xasprintf("%s/" NAME "XXXXXX", home);
    OWNED char *here = getcwd(NULL, 0);
    return xasprintf("%s/" NAME "XXXXXX", here ? here : "");
}

/* The home directory may be on a file system that does not answer. */
struct writing {
    char *text; /* owned: wiped and freed by write_file() */
    char *path; /* the caller's; NULL: `err` */
    struct ddp_err err;
};

static void write_file(void *copy)
{
    struct writing *w = copy;
    char *path = bootstrap_path();
    int fd = mkostemp(path, O_CLOEXEC); /* 0600 */
    size_t n = strlen(w->text);
    ssize_t done = fd < 0 ? -1 : write(fd, w->text, n);
    if (done >= 0 && done != (ssize_t)n)
        errno = ENOSPC; /* a short write of so few bytes: the disk is full */
    if (fd < 0) {
        err_errno(&w->err, "cannot write the bootstrap file '%s' for agents (" HINT ")",
                  path);
    } else if (close(fd) < 0 || done != (ssize_t)n) {
        err_errno(&w->err, "cannot write the bootstrap file '%s' for agents", path);
        unlink(path);
    } else {
        w->path = path;
    }
    if (!w->path)
        free(path);
    secret_wipe(w->text, n);
    free(w->text);
}

/* It was written too late: no agent will read it. */
static void unwrite_file(void *copy)
{
    struct writing *w = copy;
    if (w->path)
        unlink(w->path);
    free(w->path);
}

char *bootstrap_file_write(const char *text, struct ddp_err *err)
{
    struct writing w = {.text = xstrdup(text)};
    struct offload *o = offload_begin(write_file, &w, sizeof w, err);
    if (!o) {
        secret_wipe(w.text, strlen(w.text));
        free(w.text);
        return NULL;
    }
    const struct writing *done = offload_wait(o, WRITE_MS);
    if (!done) {
        offload_abandon(o, unwrite_file);
        errno = ETIMEDOUT;
        err_set(err,
                "the home directory, for the bootstrap files of agents, has not answered "
                "in %d s (stalled file system?); " HINT,
                WRITE_MS / 1000);
        return NULL;
    }
    char *path = done->path;
    if (!path) {
        errno = 0;
        err_set(err, "%s", done->err.text);
    }
    offload_end(o);
    return path;
}

static void remove_file(void *copy)
{
    char **path = copy;
    unlink(*path);
    free(*path);
}

void bootstrap_file_remove(char *path)
{
    struct offload *o =
        path ? offload_begin(remove_file, &path, sizeof path, NULL) : NULL;
    if (o)
        offload_wait(o, REMOVE_MS);
    else
        free(path);
    offload_end(o);
}

int bootstrap_file_read(const char *path, struct bootstrap *s, struct ddp_err *err)
{
    SCOPED(close_fd) int fd = text_file_open_private(path, err);
    if (fd < 0)
        return errno == ENOENT
                   ? err_errno(err,
                               "cannot read the bootstrap file '%s': is the home "
                               "directory not shared? " HINT,
                               path)
                   : -1;
    int rc = bootstrap_read(fd, now_ms() + READ_MS, s, err);
    if (rc < 0)
        err_prefix(err, "the bootstrap file '%s'", path);
    else if (strncmp(basename(path), NAME, strlen(NAME)) == 0)
        unlink(path);
    return rc;
}
