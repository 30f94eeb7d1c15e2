/* launcher/door/door.h - does this connection belong to the job?
 *
 * A stock TCPStore client cannot prove anything, so the kernel is asked: which socket on
 * this machine has these two ends (sock_diag), whose is it (uid), and which process holds
 * it (/proc/PID/fd). The process must be one of ours: a descendant of the agent.
 *
 * The agent of the node that a connection comes from is the one that can tell; the master
 * node's agent asks it over the links (VOUCH frames, doc/agent.md).
 */
#ifndef LAUNCHER_DOOR_DOOR_H
#define LAUNCHER_DOOR_DOOR_H

#include "include/ddprun/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/types.h>

/* Is the socket whose local end is `from` and whose remote end is `to` held by a
 * descendant of `ancestor`, and owned by our uid? 0 yes; -1 no, with the reason. */
int door_check(const struct sockaddr *from, const struct sockaddr *to, pid_t ancestor,
               struct ddp_err *err);

/* Is this an address of this machine? */
bool door_is_local(const struct sockaddr *addr);

#endif
