/* launcher/agent/agent.h - the part of ddprun that runs on each node
 *
 * It joins the launcher over one link, says what the node has, and then does what it is
 * told: bind the store's port (the master node), start its ranks, carry their output up
 * and input down, pass signals on, vouch for its ranks' connections, and end everything.
 * In a tree it also starts agents below it and passes frames between them and above
 * (relay.h). When the link upwards ends, everything here is killed at once.
 */
#ifndef LAUNCHER_AGENT_AGENT_H
#define LAUNCHER_AGENT_AGENT_H

#include "launcher/link/link.h"
#include "launcher/link/message.h"

/* For a job on one machine everything is known when the agent is made: it starts the
 * ranks without having been told over the link. All borrowed. */
struct agent_orders {
    struct msg_store *store;
    struct msg_job *job; /* the agent fills in the store's address and port */
    struct msg_share *share;
};

struct agent_setup {
    int fd;                       /* the connection to above; taken over */
    bool stdio;                   /* it is stdin, and what is written goes to stdout */
    unsigned node;                /* our number */
    const struct link_keys *keys; /* NULL: a bare link */
    bool relays;                  /* it may be told to start others below it */
    int lifelines[2];         /* the end of one of them is the end; -1: none */
    const struct agent_orders *orders; /* NULL: wait for them */
    const char *log_level;             /* NULL: the default */
    /* A peer's: it runs what its own command line says, in its own environment, and not
     * what the head's does (argv, env, user_set, wdir, preload; the rest is empty). It
     * takes the signals of its ddprun, and ends with the job's exit code. Borrowed; NULL:
     * no peer.
     */
    const struct msg_job *own;
    int mate_gone; /* a peer's: as in struct peers; borrowed */
};

/* The whole life of an agent. Returns its exit code when nothing of the job is left. */
int agent_run(const struct agent_setup *setup);

#endif
