/* launcher/agent/pmix_server.h - libpmix, spoken to in frames
 *
 * Part of ddprun-pmix, a process of its own beside each agent that has ranks which use
 * PMIx: it is started when the first of them connects, so that nobody else pays for it,
 * libpmix need not be there on machines where nobody does, and a libpmix that hangs or
 * aborts takes no agent with it. One server serves one world (libpmix cannot be
 * initialized twice in a process).
 *
 * What libpmix asks of its host goes up as FENCE, PEER, ABORT and MEMBER, what the other
 * nodes answer comes down; the bytes that ranks exchange are never looked into.
 */
#ifndef LAUNCHER_AGENT_PMIX_SERVER_H
#define LAUNCHER_AGENT_PMIX_SERVER_H

#include "launcher/link/link.h"
#include "launcher/link/message.h"

struct pmix_server;

/* Taken over: what is in `serve`, and `link`'s frames are passed to pmix_server_hear().
 * There is one in a process. */
struct pmix_server *pmix_server_create(struct loop *loop, struct link *link,
                                       struct msg_serve *serve, struct ddp_err *err);
/* Lets go of all ranks. libpmix gets a moment for it; when it does not answer it is left
 * alone, and the process must end without another call to it. */
void pmix_server_destroy(struct pmix_server *s);

int pmix_server_hear(struct pmix_server *s, const struct frame *f, struct ddp_err *err);

#endif
