/* launcher/transport/local.h - the agent of this machine: a fork of the launcher
 *
 * No exec, no connection, no key: a socketpair made before the fork. The fork is done
 * first, while there is little memory to copy and no event loop.
 */
#ifndef LAUNCHER_TRANSPORT_LOCAL_H
#define LAUNCHER_TRANSPORT_LOCAL_H

#include "include/ddprun/err.h"

#include <stdbool.h>
#include <sys/types.h>

struct local_agent {
    pid_t pid;     /* of the other side */
    int fd;        /* this side's end of the link, owned */
    bool orphaned; /* in the agent, as it ends: the launcher was lost */
};

/* Returns 1 in the launcher, 0 in the agent (a new session, without stdin), or -1. */
int local_fork(struct local_agent *a, struct ddp_err *err);
/* In an agent that is orphaned: waits until the launcher has ended, 1 s at most. Its link
 * closes before its other files. */
void local_await_launcher(const struct local_agent *a);

#endif
