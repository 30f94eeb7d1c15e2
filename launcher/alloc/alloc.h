/* launcher/alloc/alloc.h - where the job may run: nodes, slots, GPUs
 *
 * An allocation is a value: built once by one source (source.h), checked, then const. The
 * order of the nodes is the order in which ranks are placed.
 */
#ifndef LAUNCHER_ALLOC_ALLOC_H
#define LAUNCHER_ALLOC_ALLOC_H

#include "include/ddprun/err.h"
#include "launcher/opts.h"

#include <stdbool.h>
#include <stddef.h>

/* Who said how many ranks belong on a node. */
enum slots_by {
    SLOTS_UNSAID, /* nobody: alloc_resolve() decides */
    SLOTS_SAID,   /* the user or the scheduler: more needs --oversubscribe */
    SLOTS_GPUS,   /* its GPUs: likewise */
    SLOTS_DEFAULT /* 1, for want of GPUs: --nproc-per-node may say otherwise */
};

struct alloc_node {
    char *name; /* owned: as it was written, without user@, :N and brackets around IPv6 */
    char *user; /* owned: ssh login name, or NULL */
    int port;   /* ssh port, 0: ssh's own choice */
    int slots;  /* how many ranks belong here; 0: not said */
    int max_slots; /* hard cap, also for --oversubscribe; 0: none */
    bool local;    /* this machine */
    enum slots_by slots_by;
    int slots_else;   /* a scheduler's number, for want of GPUs; 0: none */
    char *slots_from; /* owned: where the number came from: "hosts:3: slots=4" */
};

struct alloc {
    struct alloc_node *nodes; /* owned */
    size_t nnodes, room;
    const char *source;     /* name of the source: "hostfile", "-H", "local", "slurm" */
    const char *slots_hint; /* of the source, or NULL */
    bool scheduler_owned;   /* we may choose from it, but not leave it */
};

void alloc_destroy(struct alloc *a);
void alloc_clear(struct alloc *a); /* what it owns, not itself */

/* The node itself has been asked for its GPUs: settle slots that nobody has said. They
 * become `ngpus`, else what a scheduler said, else 1. On a single local node without GPUs
 * they stay 0: there -np alone decides, as the user can see his machine. Nodes with slots
 * are left alone. */
void alloc_resolve(struct alloc *a, size_t node, int ngpus);

/* For sources: append a node with a copied name; returns it (valid until the next add).
 */
struct alloc_node *alloc_add(struct alloc *a, const char *name);

/* Leave only the nodes for which keep[i]; the order stays. */
void alloc_keep(struct alloc *a, const bool *keep);

#endif
