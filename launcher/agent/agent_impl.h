/* launcher/agent/agent_impl.h - definitions shared by the files of the agent
 *
 * agent.c: creation, and watching the parent; agent_messages.c: frames from the launcher;
 * agent_shutdown.c: shutdown of the node.
 */
#ifndef LAUNCHER_AGENT_AGENT_IMPL_H
#define LAUNCHER_AGENT_AGENT_IMPL_H

#include "launcher/agent/hooks.h"
#include "launcher/agent/plugin.h"

struct agent_orders;

/* agent_messages.c */
void agent_set_timeout(struct agent *a, int64_t ms); /* for silence of the launcher */
void agent_on_frame(struct link *l, const struct frame *f,
                    void *arg); /* for link_events */
/* Let agents below connect to this one; without a free port they call the launcher. */
void agent_listen(struct agent *a, int port, const struct secret *key);
/* Execute orders that were given at creation. */
void agent_execute(struct agent *a, const struct agent_orders *o);

/* agent_shutdown.c */
void agent_shutdown_init(struct agent *a);
/* Shut down everything on this node; then output may take `drain_ms` (0: no limit).
 * Called again for a later step of the escalation, or to change the limit. */
void agent_end(struct agent *a, int sig, uint32_t grace_ms, uint32_t drain_ms);
void agent_shutdown_reset(struct agent *a); /* for another attempt */
void agent_drained(struct agent *a);        /* a stream of a rank has ended */
/* Close the link to the parent and those to the agents below; kill what runs here. */
void agent_cut_off(struct agent *a);
/* The same after an unexpected loss of the launcher: logs `why` (NULL: it closed). */
void agent_orphaned(struct agent *a, const char *why);

#endif
