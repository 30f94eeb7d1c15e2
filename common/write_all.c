/* common/write_all.c - see write_all.h */
#include "common/write_all.h"

#include <errno.h>
#include <poll.h>
#include <unistd.h>

int write_all(int fd, const void *data, size_t size)
{
    for (const char *p = data; size > 0;) {
        ssize_t n = write(fd, p, size);
        if (n < 0 && errno == EAGAIN)
            poll(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, -1);
        else if (n < 0 && errno != EINTR)
            return -1;
        if (n > 0) {
            p += n;
            size -= (size_t)n;
        }
    }
    return 0;
}
