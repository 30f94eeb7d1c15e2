/* launcher/agent/relay.h - an agent in the middle of the tree
 *
 * Starts the agents below it by ssh and passes frames between them and what is above.
 * Routes are learned: a node is reached by the link its HELLO came from.
 */
#ifndef LAUNCHER_AGENT_RELAY_H
#define LAUNCHER_AGENT_RELAY_H

#include "launcher/link/link.h"
#include "launcher/link/message.h"
#include "launcher/spawn/reap.h"

struct relay;

/* `hosts` is taken over. `up` sends a frame upwards. */
struct relay *relay_create(struct loop *loop, struct reap *reap, unsigned self,
                           const char *log_level, struct msg_hosts *hosts,
                           void (*up)(const struct frame *f, void *arg),
                           void (*idle)(void *arg), void *arg, struct ddp_err *err);
void relay_destroy(struct relay *r);

void relay_down(struct relay *r, const struct frame *f);

/* One of the ssh that run here: no process of the job. */
bool relay_has_ssh(const struct relay *r, pid_t pid);
bool relay_is_idle(const struct relay *r); /* no ssh is left */

/* Let go of everything below; it ends by itself. `kill`: what is left of the ssh, too. */
void relay_stop(struct relay *r, bool kill);

#endif
