/* common/rank_map.c - see rank_map.h; the C library is all that it needs */
#include "common/rank_map.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

void *rank_map(const char *suffix, size_t size)
{
    const char *stem = getenv("DDPRUN_DIAGNOSE");
    char path[PATH_MAX];
    struct rlimit limit;
    if (!stem || snprintf(path, sizeof path, "%s.%d.%s", stem, (int)getpid(), suffix) >=
                     (int)sizeof path)
        return NULL;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < size)
        return NULL; /* SIGXFSZ would end the process */
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    void *p = fd >= 0 && posix_fallocate(fd, 0, (off_t)size) == 0
                  ? mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
                  : MAP_FAILED;
    if (fd >= 0)
        close(fd);
    return p == MAP_FAILED ? NULL : p;
}
