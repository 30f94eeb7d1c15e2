/* worker/claim.h - one place, one run
 *
 * Two runs that save to one place take away each other's checkpoints. So the one that
 * came first holds a lock (flock) on what is there: the folder, or the file that it has
 * written or goes on from. Nothing is left behind, however it ends. Where a file system
 * has no locks, nobody is refused.
 */
#ifndef WORKER_CLAIM_H
#define WORKER_CLAIM_H

#include "include/ddprun/err.h"

struct claim {
    int fd; /* owned; -1: nothing was there yet */
};

static inline struct claim claim_none(void)
{
    return (struct claim){-1};
}

/* What lies at `place` now, instead of what lay there before: before a file is replaced,
 * and afterwards. -1 with `err`: it is another run's. */
int claim_take(struct claim *c, const char *place, struct ddp_err *err);
void claim_finish(struct claim *c);

#endif
