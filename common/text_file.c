/* common/text_file.c - see text_file.h */
#include "common/text_file.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/sock.h"
#include "common/write_all.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FIRST_BYTES = 4096 };

int text_file_open(const struct text_source *from, struct ddp_err *err)
{
    int fd = open(from->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    return fd < 0 ? err_errno(err, "cannot open the %s '%s'", from->what, from->path)
                  : fd;
}

static int cannot_read(const struct text_source *from, struct ddp_err *err)
{
    if (errno == EISDIR)
        return err_set(err, "the %s '%s' is a directory", from->what, from->path);
    if (errno == ETIMEDOUT)
        return err_set(err, "nothing came from the %s '%s' in %.4g s", from->what,
                       from->path, (double)from->silence_ms / 1e3);
    return err_errno(err, "cannot read the %s '%s'", from->what, from->path);
}

ssize_t text_file_fill(const struct text_source *from, int fd, char *text, size_t size,
                       struct ddp_err *err)
{
    size_t n = 0;
    while (n < size) {
        ssize_t got = sock_await(fd, POLLIN, now_ms() + from->silence_ms) < 0
                          ? -1
                          : read(fd, text + n, size - n);
        if (got == 0)
            break;
        if (got > 0)
            n += (size_t)got;
        else if (errno != EINTR && errno != EAGAIN)
            return cannot_read(from, err);
    }
    return (ssize_t)n;
}

char *text_file_load(const char *what, const char *path, size_t max, int64_t silence_ms,
                     size_t *size, struct ddp_err *err)
{
    const struct text_source from = {what, path, silence_ms};
    SCOPED(close_fd) int fd = text_file_open(&from, err);
    OWNED char *text = NULL;
    size_t room = 0;
    if (fd < 0)
        return NULL;
    for (*size = 0; *size == room && room <= max;) {
        room = room ? room * 2 : FIRST_BYTES;
        text = xrealloc(text, room + 1, 1);
        ssize_t got = text_file_fill(&from, fd, text + *size, room - *size, err);
        if (got < 0)
            return NULL;
        *size += (size_t)got;
    }
    if (*size > max) {
        err_set(err, "the %s '%s' is longer than %zu MiB", what, path, max >> 20);
        return NULL;
    }
    char *whole = text;
    whole[*size] = '\0';
    text = NULL;
    return whole;
}

char *text_file_read(const char *what, const char *path, struct ddp_err *err)
{
    size_t size;
    char *text =
        text_file_load(what, path, TEXT_FILE_MAX, TEXT_FILE_SILENCE_MS, &size, err);
    if (!text || strlen(text) == size)
        return text;
    err_set(err, "the %s '%s' has a zero byte: it is no text", what, path);
    free(text);
    return NULL;
}

int text_file_open_private(const char *path, struct ddp_err *err)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK); /* a FIFO */
    if (fd < 0)
        return err_errno(err, "cannot open '%s'", path);
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
        !(st.st_mode & 077))
        return fd;
    close(fd);
    errno = EPERM;
    return err_set(err, "'%s' must be a file of this user that others cannot read", path);
}

int text_file_replace(const char *path, const char *text, size_t size, mode_t mode)
{
    OWNED char *part = xasprintf("%s.%d", path, (int)getpid());
    unlink(part); /* of an earlier process */
    int fd = open(part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
    int rc = fd < 0 ? -1 : write_all(fd, text, size);
    if (fd >= 0)
        rc |= close(fd); /* NFS reports here what it could not write */
    if (rc == 0)
        rc = rename(part, path);
    int why = errno;
    if (rc < 0)
        unlink(part);
    errno = why;
    return rc;
}
