/* common/text_file.c - see text_file.h */
#include "common/text_file.h"

#include "common/err.h"
#include "common/mem.h"
#include "common/write_all.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

char *text_file_read(const char *what, const char *path, struct ddp_err *err)
{
    SCOPED(close_file) FILE *in = fopen(path, "re");
    if (!in) {
        err_errno(err, "cannot open the %s file '%s'", what, path);
        return NULL;
    }
    char *text = xcalloc(TEXT_FILE_MAX + 1, 1);
    size_t n = fread(text, 1, TEXT_FILE_MAX, in);
    int rc = 0;
    if (ferror(in))
        rc = err_errno(err, "cannot read the %s file '%s'", what, path);
    else if (n == TEXT_FILE_MAX || strlen(text) != n)
        rc = err_set(err, "'%s' is not a %s file", path, what);
    if (rc == 0)
        return text;
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
