/* launcher/job/peers.h - nodes that have come by themselves, each with its connection
 *
 * Made by launcher/peer/ where a ddprun runs on every node, taken by the job, which then
 * has nobody to start.
 */
#ifndef LAUNCHER_JOB_PEERS_H
#define LAUNCHER_JOB_PEERS_H

#include "launcher/alloc/alloc.h"
#include "launcher/link/link.h"

struct peers {
    struct alloc
        *alloc; /* owned: the nodes, as they have come; the first is the head's */
    size_t n;
    struct peer {
        int fd;                /* owned until the job takes it; -1: the head's own node */
        struct link_keys keys; /* of the link */
        char *here;            /* owned: the address by which it reached us; NULL: own */
    } * list;                  /* owned, by node */
    /* borrowed: readable when another copy of ddprun on this machine, which waits for the
     * job's exit code, has ended before it; -1: there is none */
    int mate_gone;
};

/* The line for it. */
#define MATE_GONE \
    "a copy of ddprun on %s, which waited for the end of the job, has ended before it"

void peers_finish(struct peers *p);

#endif
