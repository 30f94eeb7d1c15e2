/* launcher/plugins/mpi/pmix_proc.h - the process that serves PMIx to the ranks of one
 * node
 *
 * It is started when the first rank connects, or when an MPI program is known to need it.
 * The agent accepts that connection, if it is from a process of the job, and passes it to
 * the process, together with the listening socket. Other connections are closed and start
 * nothing.
 *
 * The process is like an agent below this one: its FENCE, PEER, ABORT and LOG frames are
 * forwarded to the parent unchanged. Its failure ends the job only if an MPI program
 * needs it: one whose libraries say so (pmix_proc_expect()), or one that spoke PMIx on
 * that first connection.
 */
#ifndef LAUNCHER_PLUGINS_MPI_PMIX_PROC_H
#define LAUNCHER_PLUGINS_MPI_PMIX_PROC_H

#include "launcher/link/message.h"

#include <stdbool.h>
#include <sys/types.h>

struct agent;
struct pmix_proc;

/* The exit code of ddprun-pmix if its argument, the agent's LINK_PROTOCOL, is not its
 * own: after an upgrade of the files of a ddprun that runs. */
enum { PMIX_OTHER_VERSION = 3 };

#define PMIX_NSPACE_FORMAT "ddprun-%.100s" /* the namespace of a job, by its id */

/* Listens for the ranks of this attempt. Borrowed: the agent, and `map`, as in msg_serve,
 * empty until pmix_proc_send_map(). `member` is called for each MEMBER of the process.
 * NULL, after a warning if there is a reason for one: PMIx is not served here. */
struct pmix_proc *pmix_proc_create(struct agent *a, const struct strv *map,
                                   void (*member)(const struct msg_member *m, void *arg),
                                   void *arg);
void pmix_proc_destroy(struct pmix_proc *p); /* NULL is allowed */

/* For the ranks' variables: the namespace and the server's address; borrowed. */
void pmix_proc_names(const struct pmix_proc *p, const char **nspace, const char **uri);

void pmix_proc_expect(struct pmix_proc *p);   /* an MPI program will connect */
void pmix_proc_send_map(struct pmix_proc *p); /* the map is known */
/* Pass on a FENCE or PEER of another node, where a rank may need PMIx before any here. */
void pmix_proc_forward(struct pmix_proc *p, const struct frame *f);
/* Pass on what is for a rank that has used PMIx here. */
void pmix_proc_pass(struct pmix_proc *p, const struct frame *f);
/* Request a MEMBER_ASKED for a rank, which follows all earlier reports of it. */
void pmix_proc_ask(struct pmix_proc *p, uint32_t rank);

/* No rank is left: the process cleans up and exits; after 2 s it is killed. NULL is
 * allowed. */
void pmix_proc_stop(struct pmix_proc *p);
pid_t pmix_proc_pid(const struct pmix_proc *p); /* 0: not started, or exited */

#endif
