/* launcher/alloc/alloc.h - the allocation: nodes and their slots
 *
 * Built once by one source (source.h), checked, then const. The
 * order of the nodes is the order in which ranks are placed.
 */
#ifndef LAUNCHER_ALLOC_ALLOC_H
#define LAUNCHER_ALLOC_ALLOC_H

#include "include/ddprun/err.h"
#include "launcher/opts.h"

#include <stdbool.h>
#include <stddef.h>

/* What determined the number of slots of a node. */
enum slots_by {
    SLOTS_UNSET,  /* nothing yet: alloc_resolve() decides */
    SLOTS_GIVEN,  /* the user or the scheduler: more needs --oversubscribe */
    SLOTS_GPUS,   /* its GPUs: likewise */
    SLOTS_DEFAULT /* 1, without GPUs: --nproc-per-node may override it */
};

struct alloc_node {
    char *name;    /* owned: as given, without user@, :N and brackets around IPv6 */
    char *user;    /* owned: ssh login name, or NULL */
    int port;      /* ssh port, 0: ssh's default */
    int slots;     /* ranks on this node; 0: not given */
    int max_slots; /* limit, also with --oversubscribe; 0: none */
    int per_node;  /* --nproc-per-node of the ddprun there; 0: that of this one */
    bool local;    /* this machine */
    bool gone;     /* gets no rank: it could not be started, or was lost */
    unsigned turn; /* ranks are placed by it, at equal turns in the order of the nodes */
    enum slots_by slots_by;
    int slots_else;   /* a scheduler's number, used without GPUs; 0: none. Where -H gives
                       * slots: the most without --oversubscribe (the GPUs, if more) */
    char *slots_from; /* owned: source of the number: "hosts:3: slots=4" */
};

struct alloc {
    struct alloc_node *nodes; /* owned */
    size_t nnodes, room;
    const char *source;     /* name of the source: "hostfile", "-H", "local", "slurm" */
    const char *slots_hint; /* of the source, or NULL */
    const char *loss_hint;  /* likewise */
    const char *ssh_args;   /* for ssh to these hosts, of the environment; or NULL */
    bool scheduler_owned;   /* hosts outside it are refused */
    bool changes;           /* hosts come and go while the job runs */
};

void alloc_destroy(struct alloc *a);
void alloc_clear(struct alloc *a); /* frees the contents, not `a` */

/* Set the slots of a node that has none, once its number of GPUs is known: to `ngpus`,
 * else the scheduler's number, else 1. On a single local node without GPUs they stay 0:
 * there -np alone decides. Nodes with slots are not changed. */
void alloc_resolve(struct alloc *a, size_t node, int ngpus);

/* For sources: append a node with a copied name; returns it (valid until the next add).
 */
struct alloc_node *alloc_add(struct alloc *a, const char *name);

/* Set a node's slots, what determined them, and their source, as a format. */
void alloc_set_slots(struct alloc_node *node, int slots, enum slots_by by,
                     const char *fmt, ...) __attribute__((format(printf, 4, 5)));

/* "localhost", or one of its other names in /etc/hosts. */
bool alloc_is_localhost(const char *name);

/* A copy of a node, apart from an allocation. */
void alloc_node_copy(struct alloc_node *to, const struct alloc_node *from);
void alloc_node_finish(struct alloc_node *node);

/* Remove the nodes with !keep[i]; the order is kept. */
void alloc_keep(struct alloc *a, const bool *keep);

#endif
