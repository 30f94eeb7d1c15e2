/* launcher/agent/agent.h - the part of ddprun that runs on each node
 *
 * It joins the launcher over one link, describes the node, and then executes the
 * launcher's orders: bind the store's port (master node only), start the ranks, forward
 * their output, input and signals, identify its ranks' connections, and stop everything.
 * In a tree it also starts the agents below it and relays frames (relay.h). When the link
 * to its parent closes, it kills everything on the node at once.
 */
#ifndef LAUNCHER_AGENT_AGENT_H
#define LAUNCHER_AGENT_AGENT_H

#include "launcher/link/link.h"
#include "launcher/link/message.h"

/* For a job on one machine: the orders are known when the agent is created, so none come
 * over the link. Borrowed. */
struct agent_orders {
    struct msg_job *job;     /* taken over */
    struct msg_share *share; /* taken over */
    struct agent_order {     /* messages for plug-ins, which arrive before */
        enum msg_type type;
        struct pack body; /* owned */
    } * first;            /* owned */
    size_t nfirst;
};
void agent_orders_add(struct agent_orders *o, enum msg_type type, const void *m);
void agent_orders_finish(struct agent_orders *o); /* frees `first` */

struct agent_setup {
    int fd;                       /* the connection to the parent; ownership is taken */
    bool stdio;                   /* fd is stdin; frames are written to stdout */
    unsigned node;                /* node number of this agent */
    const struct link_keys *keys; /* NULL: an unauthenticated link */
    bool relays;                  /* it may start other agents below it */
    int listen;                   /* ... or be called by them: the port; 0: no */
    const struct secret *key;     /* with `listen`: of this node; borrowed */
    int lifelines[2];             /* it stops when either of them closes; -1: none */
    const struct agent_orders *orders; /* NULL: wait for them */
    const char *log_level;             /* NULL: the default */
    /* Only for a peer: command line, environment and directory of its own ddprun, which
     * replace the head's (argv, env, user_set, wdir, preload; the rest is empty). A peer
     * exits with the job's exit code. Borrowed; NULL: not a peer. */
    const struct msg_job *own;
    int copies_gone_fd; /* only for a peer: as in struct peers; borrowed */
    bool *orphaned;     /* set if the launcher was lost; borrowed; NULL: nobody asks */
};

/* When another instance of ddprun on a machine, which waits for the job's exit code, has
 * exited too early; %s: the host. */
#define COPY_GONE \
    "an instance of ddprun on %s, which waited for the end of the job, ended before it"

/* Run an agent until no process of the job is left. Returns its exit code. */
int agent_run(const struct agent_setup *setup);

#endif
