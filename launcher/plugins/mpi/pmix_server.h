/* launcher/plugins/mpi/pmix_server.h - a PMIx server, connected to the agent by a link
 *
 * Part of ddprun-pmix, a separate process per agent. It is started when the first rank
 * connects, so other jobs do not pay for it, libpmix is required only where it is used,
 * and a libpmix that hangs or aborts does not affect the agent. One process serves one
 * namespace (libpmix cannot be initialized twice).
 *
 * libpmix's requests to its host become FENCE, PEER, ABORT and MEMBER frames to the
 * agent; the answers of other nodes arrive as frames. The ranks' data is opaque.
 */
#ifndef LAUNCHER_PLUGINS_MPI_PMIX_SERVER_H
#define LAUNCHER_PLUGINS_MPI_PMIX_SERVER_H

#include "launcher/link/link.h"
#include "launcher/link/message.h"

struct pmix_server;

/* Takes over the contents of `serve`; `link` is borrowed, and the caller passes its
 * frames to pmix_server_on_frame(). At most one per process. */
struct pmix_server *pmix_server_create(struct loop *loop, struct link *link,
                                       struct msg_serve *serve, struct ddp_err *err);
/* Deregister all ranks, waiting a limited time for libpmix. After a timeout the process
 * must exit without another call to libpmix. */
void pmix_server_destroy(struct pmix_server *s);

int pmix_server_on_frame(struct pmix_server *s, const struct frame *f,
                         struct ddp_err *err);

#endif
