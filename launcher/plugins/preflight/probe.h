/* launcher/plugins/preflight/probe.h - the agent's side of --preflight
 *
 * Checks run in a child process, so that one that blocks (a dead file server, a name
 * server that does not answer) delays neither the agent nor the other checks: it is
 * killed after CHECK_TIMEOUT_S, reported as hanging, and a new child continues with the
 * next.
 *
 * Owner: the agent. probe_create() and probe_go_on() take over `*m`.
 */
#ifndef LAUNCHER_PLUGINS_PREFLIGHT_PROBE_H
#define LAUNCHER_PLUGINS_PREFLIGHT_PROBE_H

#include "launcher/link/message.h"
#include "launcher/transport/reap.h"

struct probe;

/* A finding, packed as MSG_FOUND's body. FOUND_END ends a phase. */
typedef void (*probe_fn)(const struct pack *found, void *arg);

/* `self` is the node's number. Starts with phase PROBE_NODE. */
struct probe *probe_create(struct loop *loop, struct reap *reap, unsigned self,
                           struct msg_probe *m, probe_fn fn, void *arg);
/* Run the next phase; false when the phase before is still running. */
bool probe_go_on(struct probe *p, struct msg_probe *m);
/* Kills its children. NULL is fine. */
void probe_destroy(struct probe *p);

#endif
