/* launcher/agent/machine.h - a node's description of itself, for HELLO */
#ifndef LAUNCHER_AGENT_MACHINE_H
#define LAUNCHER_AGENT_MACHINE_H

#include "launcher/link/message.h"

/* Fill `m`, overwriting it; `fd` is the link's socket. */
void machine_describe(int fd, struct msg_hello *m);

/* The interface over which this machine reaches `master_addr`, if Gloo's default would be
 * wrong: Gloo uses the address that the host name resolves to, which Debian's installer
 * sets to 127.0.1.1 in /etc/hosts. malloc'ed; NULL when Gloo's default is right. */
char *machine_gloo_interface(const char *master_addr);

/* Processes that the kernel has killed on this machine since it was booted, because the
 * machine or a cgroup ran out of memory. 0: none, or not known. */
uint64_t machine_oom_kills(void);

#endif
