/* worker/ddp/lock.c - see lock.h */
#include "worker/ddp/lock.h"

#include "common/err.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_one(int a, int b)
{
    struct stat x, y;
    return a >= 0 && fstat(a, &x) == 0 && fstat(b, &y) == 0 && x.st_dev == y.st_dev &&
           x.st_ino == y.st_ino;
}

int lock_take(struct lock *c, const char *place, struct ddp_err *err)
{
    int fd = open(place, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return 0; /* it is not there, or is not to be read: reported elsewhere */
    if (is_one(c->fd, fd)) {
        close(fd);
        return 0;
    }
    if (flock(fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK) {
        close(fd);
        return err_set(err,
                       "another run saves to '%s': end it, or give this one another "
                       "place for its checkpoints",
                       place);
    }
    lock_release(c);
    c->fd = fd;
    return 0;
}

void lock_release(struct lock *c)
{
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
}
