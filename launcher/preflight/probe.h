/* launcher/preflight/probe.h - the agent's half of --preflight
 *
 * Looks run in a child process, so that one that blocks (a dead file server, a name
 * server that does not answer) holds up neither the agent nor the other looks: it is
 * killed after a while, said to hang, and the next child goes on behind it.
 *
 * Owner: the agent. The question is taken over.
 */
#ifndef LAUNCHER_PREFLIGHT_PROBE_H
#define LAUNCHER_PREFLIGHT_PROBE_H

#include "launcher/link/message.h"
#include "launcher/spawn/reap.h"

struct probe;

/* A finding, packed as MSG_FOUND's body. The last of a phase is FOUND_END. */
typedef void (*probe_fn)(const struct pack *found, void *arg);

/* `self` is the node's number. Starts with phase PROBE_NODE. */
struct probe *probe_create(struct loop *loop, struct reap *reap, unsigned self,
                           struct msg_probe *m, probe_fn fn, void *arg);
/* The next question; false when the one before is not answered yet. */
bool probe_go_on(struct probe *p, struct msg_probe *m);
/* Kills its children. NULL is fine. */
void probe_destroy(struct probe *p);

#endif
