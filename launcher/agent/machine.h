/* launcher/agent/machine.h - what a node says of itself in its first words */
#ifndef LAUNCHER_AGENT_MACHINE_H
#define LAUNCHER_AGENT_MACHINE_H

#include "launcher/link/message.h"

/* Fill a zeroed hello; `fd` is the link's socket. */
void machine_describe(int fd, struct msg_hello *m);

#endif
