/* worker/ddp/lock.h - one run per checkpoint place
 *
 * Two runs that save to one place overwrite each other's checkpoints. So the first one
 * holds a lock (flock) on the folder, or on the file that it has written or resumes
 * from. The kernel releases the lock however the process ends. Where the file system
 * has no locks, no run is refused.
 */
#ifndef WORKER_DDP_LOCK_H
#define WORKER_DDP_LOCK_H

#include "include/ddprun/err.h"

struct lock {
    int fd; /* owned; -1: nothing to lock yet */
};

static inline struct lock lock_none(void)
{
    return (struct lock){-1};
}

/* Locks what is at `place` now, and releases the previous lock: called before a file
 * is replaced, and afterwards. -1 with `err`: another run holds it. */
int lock_take(struct lock *c, const char *place, struct ddp_err *err);
void lock_release(struct lock *c);

#endif
