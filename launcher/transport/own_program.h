/* launcher/transport/own_program.h - a program of ddprun's as a child: its output */
#ifndef LAUNCHER_TRANSPORT_OWN_PROGRAM_H
#define LAUNCHER_TRANSPORT_OWN_PROGRAM_H

#include "common/loop.h"
#include "common/strv.h"
#include "launcher/transport/reap.h"

struct own_program {
    struct reap *reap;      /* borrowed */
    pid_t pid;              /* 0: none, or reaped */
    int fd;                 /* owned: its stdout; -1 */
    struct event *readable; /* owned */
    /* a piece of its output; n == 0: it has ended */
    void (*out)(const void *data, size_t n, void *arg);
    void *arg;
};

/* Start `name`; `args` follow it. `in` is its stdin (-1: none; stays the caller's). One
 * that runs is killed. The other members of `p` are set by the caller. */
int own_program_start(struct own_program *p, struct loop *loop, const char *name,
                      const struct strv *args, int in, struct ddp_err *err);
void own_program_kill(struct own_program *p); /* none running is fine */

/* Is this its process? `pid` 0: does it have one? */
static inline bool own_program_is(const struct own_program *p, pid_t pid)
{
    return p->pid > 0 && (pid == 0 || pid == p->pid);
}

#endif
