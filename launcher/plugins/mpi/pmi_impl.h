/* launcher/plugins/mpi/pmi_impl.h - definitions shared by the files of the PMI server
 *
 * pmi_server.c: clients, requests, barrier; pmi_keys.c: tables; pmi_one.c, pmi_two.c:
 * commands of PMI-1, PMI-2; pmi_spawn.c: MPI_Comm_spawn; pmi_names.c: MPI_Publish_name.
 */
#ifndef LAUNCHER_PLUGINS_MPI_PMI_IMPL_H
#define LAUNCHER_PLUGINS_MPI_PMI_IMPL_H

#include "common/loop.h"
#include "launcher/link/message.h"
#include "launcher/plugins/mpi/pmi_wire.h"

/* A table of keys and values is a pointer, NULL when empty. */
struct pmi_keys;

/* Copies both; replaces the key's old value. */
void pmi_keys_put(struct pmi_keys **table, const char *key, const char *value);

/* Valid until the next put of that key; NULL: not found. */
const char *pmi_keys_get(const struct pmi_keys *table, const char *key);
void pmi_keys_clear(struct pmi_keys **table);

enum pmi_name_what { NAME_PUBLISH, NAME_LOOKUP, NAME_UNPUBLISH, NAME_WHATS };

/* PMI-2: a client thread waiting for a node attribute. */
struct pmi_wait {
    char *key;    /* owned: as pmi_two.c's node_key() */
    char *thread; /* owned: as in pmi_client */
    struct pmi_wait *next;
};

/* One rank. */
struct pmi_client {
    struct pmi_server *server; /* borrowed */
    uint32_t rank;
    int fd;                 /* owned: our end; -1: closed */
    struct event *readable; /* owned */
    char *buffer;           /* owned: an incomplete request, or NULL */
    size_t fill;
    bool pmi2;        /* it speaks PMI-2 */
    bool joined;      /* it has sent init, and not finalize or abort */
    bool waits;       /* in the barrier */
    unsigned program; /* ordinal of the rank's current MPI program, from 1 */
    char *thread;     /* owned: PMI-2's "thrid" of the request being answered */
    char *parked;     /* owned: "thrid" of the request that waits in the barrier */
    struct pmi_wait *waits_node; /* owned */
    struct {
        struct strv words;        /* of the program that is being read */
        struct msg_spawn request; /* owned: the programs before it */
        uint32_t id;              /* of the last request */
        bool asks;                /* the launcher has not answered it */
        char *thread;             /* owned: its "thrid" */
    } spawn;                      /* pmi_spawn.c */
    struct {
        enum pmi_name_what what; /* of the last request */
        uint32_t id;
        bool asks;    /* it has not been answered */
        char *thread; /* owned: its "thrid" */
    } name;           /* pmi_names.c */
};

struct pmi_server {
    struct agent *agent;        /* borrowed */
    const struct msg_job *job;  /* borrowed */
    uint32_t nlocal, node_rank; /* the agent's share may be another at the end */
    void (*member)(uint32_t local, bool joined, void *arg);
    void *arg;
    char *kvsname;              /* owned: name of the key-value space, one per attempt */
    struct pmi_client *clients; /* owned, by local rank */
    struct pmi_keys *keys;  /* owned: this node's, and others' as of the last barrier */
    struct pmi_keys *node;  /* owned: PMI-2 node attributes, by pmi_two.c's node_key() */
    struct pack unsent;     /* put on this node since the last barrier */
    struct pmi_keys *names; /* owned: published; "": no longer */
    uint32_t waiting;       /* clients in the barrier */
    uint32_t barriers;
    bool used; /* a rank has sent a request: there are MPI programs */
};

struct pmi_command {
    const char *name;
    void (*handle)(struct pmi_client *c, const struct pmi_request *r);
};

/* A version of the protocol. */
struct pmi_dialect {
    const struct pmi_command *commands; /* ends with an entry without a name */
    void (*unknown)(struct pmi_client *c, const char *name);
    void (*barrier_over)(struct pmi_client *c); /* answer a client that waited in it */
    void (*spawned)(struct pmi_client *c, const char *job); /* NULL: it failed */
    /* The port of a name; NULL: it failed. */
    void (*named)(struct pmi_client *c, enum pmi_name_what what, const char *port);
};

extern const struct pmi_dialect pmi_one, pmi_two;
static inline const struct pmi_dialect *pmi_dialect_of(const struct pmi_client *c)
{
    return c->pmi2 ? &pmi_two : &pmi_one;
}

/* Send an answer, with the length prefix of PMI-2. Closes a client that does not read, or
 * whose answer exceeds PMI_REQUEST_MAX. */
void pmi_answer(struct pmi_client *c, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Make a key visible here at once, and on all nodes after the next barrier. */
void pmi_put(struct pmi_server *s, const char *key, const char *value);

/* A command of both: the client is answered by the dialect's barrier_over(). */
void pmi_barrier_enter(struct pmi_client *c, const struct pmi_request *r);

/* The number of the client's program: of "a : b" that of b is 1. */
unsigned pmi_appnum(const struct pmi_client *c);

/* The client enters MPI, or leaves it. Drops its waiting threads. */
void pmi_join(struct pmi_client *c, bool joined);
/* A line of PMI-1. Returns whether it is part of a request for more processes. */
bool pmi_spawn_line(struct pmi_client *c, const char *line, size_t size);
void pmi_spawn_words(struct pmi_client *c, const struct pmi_request *r); /* PMI-2's */
void pmi_spawn_result(struct pmi_server *s, const struct msg_spawn_result *m);
void pmi_spawn_forget(struct pmi_client *c);
/* A request, answered by the dialect's named(). */
void pmi_name_ask(struct pmi_client *c, enum pmi_name_what what, const char *name,
                  const char *port);
int pmi_name_message(struct pmi_server *s, const struct msg_related *m,
                     struct ddp_err *err);
void pmi_name_forget(struct pmi_client *c);
void pmi_abort(struct pmi_client *c, int code, const char *text); /* "": no text */

#endif
