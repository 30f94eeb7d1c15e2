/* launcher/agent/pmi_impl.h - what pmi_server.c and its two dialects share
 *
 * pmi_server.c: the clients, what they send, and their barrier; pmi_one.c and pmi_two.c:
 * the verbs of PMI-1 and PMI-2.
 */
#ifndef LAUNCHER_AGENT_PMI_IMPL_H
#define LAUNCHER_AGENT_PMI_IMPL_H

#include "launcher/agent/pmi_keys.h"
#include "launcher/agent/pmi_server.h"
#include "launcher/agent/pmi_wire.h"

/* PMI-2: a thread that waits for an attribute of its node. */
struct pmi_wait {
    char *key;    /* owned: as pmi_two.c's node_key() */
    char *thread; /* owned: as in pmi_client */
    struct pmi_wait *next;
};

/* One rank. */
struct pmi_client {
    struct pmi_server *server; /* borrowed */
    uint32_t rank;
    int fd, theirs;         /* owned; -1: closed */
    struct event *readable; /* owned */
    char *buffer;           /* owned: what has come, when it is not whole; or NULL */
    size_t fill;
    bool second;      /* speaks PMI-2 */
    bool joined;      /* and has not left */
    bool waits;       /* in the barrier */
    unsigned program; /* the how-manieth of its rank speaks, from 1 */
    char *thread;     /* owned: of the request that is being answered, PMI-2's "thrid" */
    char *parked;     /* owned: the same of the one that is in the barrier */
    struct pmi_wait *waits_node; /* owned */
};

struct pmi_server {
    struct loop *loop;             /* borrowed */
    const struct msg_job *job;     /* borrowed */
    const struct msg_share *share; /* borrowed */
    struct pmi_events events;
    void *arg;
    char *space;                /* owned: name of the store of keys, one for a start */
    struct pmi_client *clients; /* owned, by local rank */
    struct pmi_keys *keys; /* owned: of all ranks, as of the last barrier, and ours */
    struct pmi_keys
        *node;        /* owned: of this node alone, PMI-2, by pmi_two.c's node_key() */
    struct pack news; /* what was put here since then */
    uint32_t waiting; /* clients in the barrier */
    uint32_t barriers;
    bool asked; /* there are MPI programs among the ranks */
};

struct pmi_command {
    const char *name;
    void (*verb)(struct pmi_client *c, const struct pmi_request *r);
};

/* How clients speak. */
struct pmi_dialect {
    const struct pmi_command *commands; /* up to one without a name */
    void (*unknown)(struct pmi_client *c, const char *name);
    void (*barrier_over)(struct pmi_client *c); /* who waited in it is let out */
};

extern const struct pmi_dialect pmi_one, pmi_two;

/* Send it, with what the client's dialect has before it. Who does not read, or asks for
 * more than an answer can be, is closed. */
void pmi_answer(struct pmi_client *c, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Everybody may get it after the next barrier. */
void pmi_put(struct pmi_server *s, const char *key, const char *value);

/* The answer comes by the dialect's barrier_over(). */
void pmi_barrier_enter(struct pmi_client *c);

void pmi_join(struct pmi_client *c, bool joined); /* or leave: nothing of it waits on */
void pmi_refuse_spawn(struct pmi_client *c);
void pmi_abort(struct pmi_client *c, int code, const char *text); /* "": no text */

#endif
