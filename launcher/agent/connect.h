/* launcher/agent/connect.h - an agent without a link connects to its launcher
 *
 * By TCP to one of the launcher's addresses, or, if the bootstrap data say so, by the
 * stdin and stdout that its transport forwards.
 */
#ifndef LAUNCHER_AGENT_CONNECT_H
#define LAUNCHER_AGENT_CONNECT_H

#include "launcher/link/bootstrap.h"

struct connected {
    int fd;         /* STDIN_FILENO: stdin and stdout are the link */
    bool announced; /* TRANSPORT_PROC_LINK was written: stdin is no lifeline any more */
    struct link_keys keys;
};

/* Blocks until the link is authenticated: 0. -1: every address refused, for CONNECT_MS
 * none answered, or the agent's starter has closed stdin. A launcher that is stopped is
 * waited for as long as its host answers and stdin, the lifeline, is open; without one,
 * and where its host only refuses and ssh is left, for ten minutes. */
int connect_launcher(const struct bootstrap *s, struct connected *c, struct ddp_err *err);

#endif
