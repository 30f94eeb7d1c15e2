/* launcher/agent/connect.h - an agent calls whoever has started it
 *
 * Blocking: until it has a link an agent has nothing else to do.
 */
#ifndef LAUNCHER_AGENT_CONNECT_H
#define LAUNCHER_AGENT_CONNECT_H

#include "launcher/link/bootstrap.h"
#include "launcher/link/link.h"

/* Connect and prove the key, trying first the address that ssh, or Slurm, says whoever
 * started us has (`from`: what SSH_CONNECTION or SLURM_LAUNCH_NODE_IPADDR begins with, or
 * NULL), then those of the summons.
 * Returns the connected socket with the keys of the link, or -1. */
int connect_launcher(const struct bootstrap *s, const char *from, int64_t deadline_ms,
                     struct link_keys *keys, struct ddp_err *err);

/* For want of that: speak through what ssh has opened, our stdin and stdout. Says so with
 * TRANSPORT_PROC_LINK, and proves the key likewise. 0, or -1: nobody takes it up. */
int connect_by_stdio(const struct bootstrap *s, struct link_keys *keys);

#endif
