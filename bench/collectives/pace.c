/* bench/collectives/pace.c - LD_PRELOAD: no socket sends faster than
 * PACE_BYTES_PER_SECOND
 *
 * As on clouds, which limit each flow to a part of the link. The kernel's TCP paces a
 * socket by itself since Linux 4.20, without a queueing discipline.
 */
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/socket.h>

#define SHOWN __attribute__((visibility("default")))

static int paced(int fd)
{
    const char *rate = getenv("PACE_BYTES_PER_SECOND");
    unsigned long most = rate ? strtoul(rate, NULL, 10) : 0;
    if (fd >= 0 && most > 0)
        setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &most, sizeof most);
    return fd;
}

SHOWN int socket(int domain, int type, int protocol)
{
    int (*next)(int, int, int) = NULL;
    *(void **)&next = dlsym(RTLD_NEXT, "socket");
    return paced(next(domain, type, protocol));
}

SHOWN int accept4(int fd, __SOCKADDR_ARG addr, socklen_t *len, int flags)
{
    int (*next)(int, __SOCKADDR_ARG, socklen_t *, int) = NULL;
    *(void **)&next = dlsym(RTLD_NEXT, "accept4");
    return paced(next(fd, addr, len, flags));
}
