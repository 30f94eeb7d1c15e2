/* launcher/plugins/diagnose/child.h - ddprun-diagnose as a child, its output as events */
#ifndef LAUNCHER_PLUGINS_DIAGNOSE_CHILD_H
#define LAUNCHER_PLUGINS_DIAGNOSE_CHILD_H

#include "common/loop.h"
#include "common/strv.h"
#include "launcher/transport/reap.h"

struct diagnose_child {
    struct reap *reap;      /* borrowed */
    pid_t pid;              /* 0: none, or reaped */
    int fd;                 /* owned: its stdout; -1 */
    struct event *readable; /* owned */
    /* a piece of its output; n == 0: it has ended */
    void (*out)(const void *data, size_t n, void *arg);
    void *arg;
};

/* Start it with `args` after the program's name; `in` is its stdin (-1: none; stays the
 * caller's). The other members of `c` are set by the caller. */
int diagnose_child_start(struct diagnose_child *c, struct loop *loop,
                         const struct strv *args, int in, struct ddp_err *err);
void diagnose_child_kill(struct diagnose_child *c); /* none running is fine */

/* Is this its process? `pid` 0: does it have one? */
static inline bool diagnose_child_is(const struct diagnose_child *c, pid_t pid)
{
    return c->pid > 0 && (pid == 0 || pid == c->pid);
}

#endif
