/* launcher/agent/relay.h - an inner node of the agent tree
 *
 * Starts the agents below this one by ssh, or lets those connect that a scheduler has
 * started, and forwards frames between them and the parent. Routes are learned: a node is
 * reached by the link on which its HELLO arrived.
 */
#ifndef LAUNCHER_AGENT_RELAY_H
#define LAUNCHER_AGENT_RELAY_H

#include "launcher/link/link.h"
#include "launcher/link/message.h"
#include "launcher/transport/reap.h"

struct relay;

/* `hosts` is taken over. `up` sends a frame to the parent; `idle`: no ssh is left. */
struct relay *relay_create(struct loop *loop, struct reap *reap, unsigned self,
                           const char *log_level, struct msg_hosts *hosts,
                           void (*up)(const struct frame *f, void *arg),
                           void (*idle)(void *arg), void *arg, struct ddp_err *err);
/* Listen on the first free one of BOOTSTRAP_PORTS (link/bootstrap.h) from `port` on, for
 * agents that prove their keys, derived from `key`, this node's. */
struct relay *relay_listen(struct loop *loop, unsigned self, int port,
                           const struct secret *key,
                           void (*up)(const struct frame *f, void *arg), void *arg,
                           struct ddp_err *err);
void relay_destroy(struct relay *r);

/* relay_send(r, MSG(...)): of this node itself; merged with those from below. */
void relay_send(struct relay *r, enum msg_type type, const void *m);
void relay_down(struct relay *r, const struct frame *f);
/* Tell the agents below that this one runs, while the launcher is silent. */
void relay_beat(struct relay *r);

/* Whether `pid` is one of the ssh processes, which are not part of the job. */
bool relay_has_ssh(const struct relay *r, pid_t pid);
bool relay_is_idle(const struct relay *r); /* no ssh is left */

/* Close the links to the agents below, which then shut down. `kill`: the ssh, too. */
void relay_stop(struct relay *r, bool kill);

#endif
