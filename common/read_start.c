/* common/read_start.c - see read_start.h */
#include "common/read_start.h"

#include "common/scoped.h"

#include <fcntl.h>
#include <unistd.h>

ssize_t read_start(const char *path, char *text, size_t size)
{
    SCOPED(close_fd) int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, size - 1);
    text[n > 0 ? n : 0] = '\0';
    return n;
}
