/* launcher/plugins/mpi/pmix_related.h - operations of ranks with ranks of related jobs
 *
 * Jobs are related if ranks of one have spawned the other (launcher/plugins/spawn/). A
 * RELATED frame of a PMIx server reaches all PMIx servers of all related jobs that run
 * by then.
 *
 * PMIx_Connect, or a fence with other jobs' ranks (pmix_related.c): the ranks of each job
 * enter a fence of their own, which collects what they have committed. The first node of
 * each job sends that, its job's part, to all servers. It sends it again on the first
 * part of another job, whose servers may not have been ready before. The operation is
 * complete where the parts of all jobs are there.
 *
 * PMIx_Publish and PMIx_Lookup (pmix_names.c): a value stays in the server of the rank
 * that publishes it. A lookup goes to all servers, and the one that has the value sends
 * it. A new name is sent to all, and servers with a pending lookup of it repeat that.
 */
#ifndef LAUNCHER_PLUGINS_MPI_PMIX_RELATED_H
#define LAUNCHER_PLUGINS_MPI_PMIX_RELATED_H

#include "launcher/plugins/mpi/pmix_impl.h"

/* What a RELATED frame is; the first byte. */
enum related_what { RELATED_PART, RELATED_LOOKUP, RELATED_FOUND, RELATED_NEW_NAME };

/* pmix_call.node of an answer to pmix_calls_ask() of pmix_related.c. */
#define RELATED_NODE UINT32_MAX

void related_begin(struct pmix_server *s, struct pmix_call *c);
void related_committed(struct pmix_server *s, const struct pmix_call *c);
void related_modex(struct pmix_server *s, const struct pmix_call *c);
/* Forget a job that has ended. */
void related_job_ended(struct pmix_server *s, const char *id);
int related_on_message(struct pmix_server *s, const struct msg_related *m,
                       struct ddp_err *err);

void names_publish(struct pmix_server *s, struct pmix_call *c); /* takes c->names */
void names_unpublish(struct pmix_server *s, const struct pmix_call *c);
void names_lookup(struct pmix_server *s, struct pmix_call *c);
void names_on_timer(evutil_socket_t fd, short what, void *arg);
/* The rest of a frame; false: it is invalid. */
bool names_on_message(struct pmix_server *s, enum related_what what, struct unpack *u);

#endif
