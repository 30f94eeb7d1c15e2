/* launcher/plugins/mpi/pmix_related.h - operations of ranks with ranks of related jobs
 *
 * Jobs are related if ranks of one have spawned the other (launcher/plugins/spawn/). A
 * RELATED frame of a PMIx server reaches all PMIx servers of all related jobs that run
 * by then.
 *
 * Join (pmix_related.c): PMIx_Connect, or a fence. First the ranks of each job meet, by a
 * fence of their own that collects what they have committed. Then the first node of each
 * job sends that to the others, and again to a job from which it hears for the first
 * time, since that may have missed it. It is complete where all jobs' parts are there.
 *
 * Names (pmix_names.c): PMIx_Publish and PMIx_Lookup. A value stays in the server of the
 * rank that publishes it. A lookup is a question to all; that a name is new is told to
 * all, and who waits for it asks again.
 */
#ifndef LAUNCHER_PLUGINS_MPI_PMIX_RELATED_H
#define LAUNCHER_PLUGINS_MPI_PMIX_RELATED_H

#include "launcher/plugins/mpi/pmix_impl.h"

/* What a RELATED frame is; the first byte. */
enum related_what { RELATED_PART, RELATED_QUESTION, RELATED_ANSWER, RELATED_NEW_NAME };

/* pmix_call.node of an answer to related_join(). */
#define RELATED_NODE UINT32_MAX

void related_join(struct pmix_server *s, struct pmix_call *c);
void related_committed(struct pmix_server *s, const struct pmix_call *c);
void related_modex(struct pmix_server *s, const struct pmix_call *c);
int related_on_message(struct pmix_server *s, const struct msg_related *m,
                       struct ddp_err *err);

void names_publish(struct pmix_server *s, struct pmix_call *c); /* takes c->names */
void names_unpublish(struct pmix_server *s, const struct pmix_call *c);
void names_lookup(struct pmix_server *s, struct pmix_call *c);
void names_on_timer(evutil_socket_t fd, short what, void *arg);
/* The rest of a frame; false: it is invalid. */
bool names_on_message(struct pmix_server *s, enum related_what what, struct unpack *u);

#endif
