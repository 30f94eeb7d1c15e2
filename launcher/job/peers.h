/* launcher/job/peers.h - the connected nodes of a job that runs ddprun on every node
 *
 * Filled by launcher/peer/ and used by the job, which then starts no agents.
 */
#ifndef LAUNCHER_JOB_PEERS_H
#define LAUNCHER_JOB_PEERS_H

#include "launcher/alloc/alloc.h"
#include "launcher/link/link.h"

/* How another ddprun joins a job that runs. */
struct late_events {
    /* Returns its node, or -1 with the reason; `as` is borrowed. */
    long (*admit)(const struct alloc_node *as, struct ddp_err *err, void *arg);
    /* The instance has got its node's number; takes over `fd`. */
    void (*joined)(unsigned node, int fd, const struct link_keys *keys, void *arg);
};

struct late_peers { /* of launcher/peer/ */
    int (*listen)(struct late_peers *l, struct loop *loop,
                  const struct late_events *events, void *arg, struct ddp_err *err);
    void (*close)(struct late_peers *l); /* frees it, too */
};

struct peers {
    struct alloc *alloc; /* owned: the nodes as they joined; the first is the head's */
    size_t n;
    struct peer {
        int fd; /* owned until the job takes it over; -1: the head's own node */
        struct link_keys keys; /* of the link */
        char *here; /* owned: the head's address that it connected to; NULL: head */
    } * list;       /* owned, by node */
    /* borrowed: readable when another instance of ddprun on this machine, which waits for
     * the job's exit code, has exited too early; -1: there is no other */
    int copies_gone_fd;
    struct late_peers *late; /* owned; NULL: no others may join */
};

void peers_finish(struct peers *p);

#endif
