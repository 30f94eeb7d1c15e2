/* launcher/admission/admission.h - does a connection belong to the job?
 *
 * A stock TCPStore client cannot authenticate, so the kernel is queried: which local
 * socket has these two ends (sock_diag), and which process holds it (/proc/PID/fd). The
 * process must be a descendant of the agent, with any user and any namespaces except for
 * another network namespace.
 *
 * Only the agent of the node that a connection comes from can tell; the master node's
 * agent asks it over the links (VOUCH frames, doc/agent.md).
 */
#ifndef LAUNCHER_ADMISSION_ADMISSION_H
#define LAUNCHER_ADMISSION_ADMISSION_H

#include "include/ddprun/err.h"

#include <stddef.h>
#include <sys/socket.h>
#include <sys/types.h>

struct admission; /* the known processes of one tree */

struct admission *admission_create(pid_t ancestor);
void admission_destroy(struct admission *d);

/* Is the socket with the local end `from` and the remote end `to` held by a descendant of
 * the ancestor? 0: yes; -1: no, and ADMISSION_ELSEWHERE when there is no such socket in
 * this network namespace, both with the reason. Does not wait; results of one /proc scan
 * are cached, so that hundreds of ranks that connect together cost one scan. */
enum { ADMISSION_ELSEWHERE = 1 };
int admission_check(struct admission *d, const struct sockaddr *from,
                    const struct sockaddr *to, struct ddp_err *err);

/* The same of the other end, `from`, of an accepted connection; and the process (`holder`
 * may be NULL). */
int admission_accepted(struct admission *d, int fd, const struct sockaddr *from,
                       pid_t *holder, struct ddp_err *err);

#endif
