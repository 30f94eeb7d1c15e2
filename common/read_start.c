/* common/read_start.c - see read_start.h */
#include "common/read_start.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

ssize_t read_start(const char *path, char *text, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, size - 1);
    int error = errno;
    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = '\0';
    errno = error;
    return n;
}
