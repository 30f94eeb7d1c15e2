/* launcher/peer/listener.h - where the other ddprun of a job connect to the head
 *
 * A caller is one connection: authenticated (transport/accept.h), then joined once its
 * JOIN has arrived. After that it sends nothing until it has the reply: more bytes, or an
 * end, end its entry.
 */
#ifndef LAUNCHER_PEER_LISTENER_H
#define LAUNCHER_PEER_LISTENER_H

#include "launcher/peer/ambient_job.h"
#include "launcher/peer/join_message.h"
#include "launcher/peer/key.h"

#include "common/loop.h"
#include "launcher/link/link.h"

enum { PEER_PORT = 29400 }; /* the head's port without a meeting file; as c10d's */

struct peer_listener;

struct caller {
    struct peer_listener *listener; /* borrowed: its owner */
    unsigned rank;                  /* the lowest on its machine */
    int fd;                         /* owned; -1: the head itself */
    struct link_keys keys;
    char *here; /* owned: the head's address that it connected to */
    bool joined;
    struct msg_join request; /* owned; valid when it has joined */
    struct event *readable;  /* owned */
    unsigned char bytes[JOIN_SIZE];
    size_t have;
    struct caller *next; /* of its rank */
};

struct peer_listener {
    const struct opts *opts;       /* borrowed, as all up to `arg` */
    const struct ambient_job *job; /* of which size and the kind of start are used */
    struct loop *loop;
    /* A JOIN has arrived. A caller that is refused here is dropped. */
    void (*on_join)(struct caller *c, void *arg);
    void *arg;
    struct acceptor *acceptor; /* owned */
    struct hostset *allowed;   /* owned; NULL: any host with the key */
    struct caller **callers;   /* owned: a list for each rank; NULL: none yet */
    unsigned njoined;          /* those that have joined, and their instances */
    unsigned copies;
};

/* Listen, with the fields above `arg` set. The key's meeting file is written. */
int peer_listener_open(struct peer_listener *l, const struct peer_key *k,
                       struct ddp_err *err);
void peer_listener_close(struct peer_listener *l); /* drops the callers */

struct caller *caller_add(struct peer_listener *l, unsigned rank);
/* The first of the rank that has joined, but not `but`; NULL: none. */
struct caller *caller_joined(const struct peer_listener *l, unsigned rank,
                             const struct caller *but);
/* A JOIN is there: c->request is set. */
void caller_count(struct caller *c);
void caller_drop(struct caller *c);
/* Reply, and give up the connection, which the caller owns then. */
int caller_admit(struct caller *c, unsigned node, unsigned nnodes);
void caller_refuse(struct caller *c, const char *why); /* reply only */

#endif
