/* launcher/agent/machine.h - what a node says of itself in its first words */
#ifndef LAUNCHER_AGENT_MACHINE_H
#define LAUNCHER_AGENT_MACHINE_H

#include "launcher/link/message.h"

/* Fill a zeroed hello; `fd` is the link's socket. */
void machine_describe(int fd, struct msg_hello *m);

/* The interface over which this machine reaches `master_addr`, when Gloo, left alone,
 * would choose another: it takes the address that the machine's own name stands for, and
 * Debian's installer writes a 127.0.1.1 for that into /etc/hosts. Malloc'ed; NULL when
 * nothing need be said. */
char *machine_gloo_interface(const char *master_addr);

#endif
