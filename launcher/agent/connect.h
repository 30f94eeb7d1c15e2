/* launcher/agent/connect.h - an agent's connection to its parent
 *
 * Blocking: an agent without a link has nothing else to do.
 */
#ifndef LAUNCHER_AGENT_CONNECT_H
#define LAUNCHER_AGENT_CONNECT_H

#include "launcher/link/bootstrap.h"
#include "launcher/link/link.h"

/* Connect and authenticate. Tries the parent's address as ssh or Slurm gives it first
 * (`from`: SSH_CONNECTION, whose first word is used, or SLURM_LAUNCH_NODE_IPADDR; or
 * NULL), then those of the bootstrap data. Returns the connected socket and the keys of
 * the link, or -1. */
int connect_launcher(const struct bootstrap *s, const char *from, int64_t deadline_ms,
                     struct link_keys *keys, struct ddp_err *err);

/* The node that is this one's parent in the tree of agents (bootstrap.h): it may start
 * later, so this tries until the deadline. -1: call the launcher instead. */
int connect_parent(const struct bootstrap *s, int64_t deadline_ms, struct link_keys *keys,
                   struct ddp_err *err);

/* Fallback: use stdin and stdout, which ssh forwards, as the link. Announces that with
 * TRANSPORT_PROC_LINK and authenticates the same way. 0, or -1: the parent did not
 * accept. */
int connect_by_stdio(const struct bootstrap *s, struct link_keys *keys);

#endif
