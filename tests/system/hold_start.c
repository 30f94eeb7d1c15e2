/* hold_start.c - preloaded into ddprun: the thread of an agent that has started a rank
 * tells nobody of it before the file $HOLD_START_UNTIL.N exists, where N is the number of
 * earlier starts; stat() of the file $HOLD_STAT, and making files in the directory
 * $HOLD_MKOSTEMP, do not return, as on a dead file server; nor, in a rank of the first
 * attempt, a rename to $HOLD_RENAME
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* The thread's first step after a start (reap_order() in launcher/transport/reap.c). */
int epoll_ctl(int epfd, int op, int fd, struct epoll_event *event)
{
    static int before; /* one thread only */
    const char *until = getenv("HOLD_START_UNTIL");
    if (until && gettid() != getpid()) {
        char path[4096];
        snprintf(path, sizeof path, "%s.%d", until, before++);
        while (access(path, F_OK) < 0)
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return (int)syscall(SYS_epoll_ctl, epfd, op, fd, event);
}

int stat(const char *path, struct stat *st)
{
    const char *held = getenv("HOLD_STAT");
    while (held && strcmp(path, held) == 0)
        pause();
    return fstatat(AT_FDCWD, path, st, 0);
}

int mkostemp64(char *path, int flags)
{
    const char *held = getenv("HOLD_MKOSTEMP");
    while (held && strncmp(path, held, strlen(held)) == 0)
        pause();
    int (*of_libc)(char *, int) = (__typeof__(of_libc))dlsym(RTLD_NEXT, "mkostemp64");
    return of_libc(path, flags);
}

int rename(const char *from, const char *to)
{
    const char *held = getenv("HOLD_RENAME");
    const char *attempt = getenv("TORCHELASTIC_RESTART_COUNT");
    while (held && strcmp(to, held) == 0 && attempt && strcmp(attempt, "0") == 0)
        pause();
    return renameat(AT_FDCWD, from, AT_FDCWD, to);
}
