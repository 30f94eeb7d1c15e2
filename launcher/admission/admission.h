/* launcher/admission/admission.h - does this connection belong to the job?
 *
 * A stock TCPStore client cannot prove anything, so the kernel is asked: which socket on
 * this machine has these two ends (sock_diag), and which process holds it (/proc/PID/fd).
 * The process must be one of ours: a descendant of the agent, whatever its user and its
 * namespaces, but for that of the network.
 *
 * The agent of the node that a connection comes from is the one that can tell; the master
 * node's agent asks it over the links (VOUCH frames, doc/agent.md).
 */
#ifndef LAUNCHER_ADMISSION_ADMISSION_H
#define LAUNCHER_ADMISSION_ADMISSION_H

#include "include/ddprun/err.h"

#include <stddef.h>
#include <sys/socket.h>
#include <sys/types.h>

struct admission; /* what is known about one tree of processes; one per agent */

struct admission *admission_create(pid_t ancestor);
void admission_destroy(struct admission *d);

/* Is the socket whose local end is `from` and whose remote end is `to` held by a
 * descendant of the ancestor? 0 yes; -1 no, and ADMISSION_ELSEWHERE when there is no such
 * socket in the network of this process, both with the reason. Answers at once: what one
 * look into /proc has found is kept for the next call, so that hundreds of ranks that
 * connect together cost one look, not hundreds. */
enum { ADMISSION_ELSEWHERE = 1 };
int admission_check(struct admission *d, const struct sockaddr *from,
                    const struct sockaddr *to, struct ddp_err *err);

/* The same, and which process it is. */
int admission_holder(struct admission *d, const struct sockaddr *from,
                     const struct sockaddr *to, pid_t *holder, struct ddp_err *err);

#endif
