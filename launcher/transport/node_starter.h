/* launcher/transport/node_starter.h - start agents on other hosts and accept their
 * connections
 *
 * Runs the transport's processes - an ssh per host, at most `window` at a time that have
 * not connected back, or one srun for all - passes the bootstrap lines, listens, and
 * accepts agents that prove the key. Used by the launcher, and in a tree by agents for
 * their children.
 *
 * Owner: the job, or an agent. Hosts and key are borrowed.
 */
#ifndef LAUNCHER_TRANSPORT_NODE_STARTER_H
#define LAUNCHER_TRANSPORT_NODE_STARTER_H

#include "launcher/link/link.h"
#include "launcher/link/message.h"
#include "launcher/transport/reap.h"
#include "launcher/transport/transport.h"
#include "launcher/transport/tree.h"

struct node_starter;

struct node_starter_events {
    /* An agent has connected and proved the key; the callee owns `fd`; `here` is the
     * local address it connected to (borrowed). */
    void (*joined)(unsigned node, int fd, const struct link_keys *keys, const char *here,
                   void *arg);
    /* Its start failed: one line with host, cause, and what to try. Once per host.
     * `follows`: the failure of another host may be the cause. */
    void (*failed)(unsigned node, const char *line, bool follows, void *arg);
    /* The transport says that a host that has joined is gone. NULL: not wanted. */
    void (*lost)(unsigned node, const char *why, void *arg);
    /* The last transport process has ended. */
    void (*idle)(void *arg);
};

struct node_starter *node_starter_create(struct loop *loop, struct reap *reap,
                                         const struct transport *transport,
                                         const struct msg_hosts *hosts,
                                         const struct secret *key, const char *log_level,
                                         const struct node_starter_events *events,
                                         void *arg, struct ddp_err *err);

/* Let the agents connect in a tree of this width, to each other (link/bootstrap.h); those
 * at the top of it connect to us. */
void node_starter_tree(struct node_starter *s, unsigned width);
/* The agent of `node` has connected to another one. */
void node_starter_joined(struct node_starter *s, unsigned node);

/* Queue a host, or those that `self` (TREE_ROOT, or a node) starts in the start-up tree,
 * and return how many; start the queued ones. */
void node_starter_queue(struct node_starter *s, unsigned node);
size_t node_starter_queue_below(struct node_starter *s, unsigned self);
void node_starter_go(struct node_starter *s);
/* Does `node` start others in that tree? */
bool node_starter_has_below(const struct node_starter *s, unsigned node);

/* Start the agent of a host that had joined or failed once more, now: it connects to us,
 * not to another agent. */
void node_starter_again(struct node_starter *s, unsigned node);

/* The state of a host that has not joined, for the timeout message: malloc'ed. */
char *node_starter_missing(const struct node_starter *s, unsigned node);

/* Is `pid` one of its transport processes? */
bool node_starter_has_process(const struct node_starter *s, pid_t pid);
bool node_starter_is_idle(const struct node_starter *s);

/* All have joined: stop listening. */
void node_starter_close(struct node_starter *s);

/* Start nothing more and close the lifelines of all agents. */
void node_starter_stop(struct node_starter *s);
/* Kill the transport processes that have not ended. */
void node_starter_kill(struct node_starter *s);
void node_starter_destroy(struct node_starter *s);

#endif
