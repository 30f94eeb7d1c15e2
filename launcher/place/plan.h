/* launcher/place/plan.h - the mapping of ranks to nodes
 *
 * Made by plan_make() from the options and the allocation; nodes may be added, and
 * nothing else changes. Ranks are numbered 0..nranks-1; a node's ranks have local ranks
 * 0..n-1 in rank order. Nodes without a rank are left out. Node 0 is the node of rank 0:
 * the master node.
 *
 * CPUs and GPUs of a node are known only there. The plan therefore gives the number of
 * ranks on the node; the agent assigns CPU sets and devices (bind.h) and, for --dry-run,
 * the launcher does the same for this machine.
 */
#ifndef LAUNCHER_PLACE_PLAN_H
#define LAUNCHER_PLACE_PLAN_H

#include "launcher/alloc/alloc.h"

struct plan_rank {
    int node;       /* index into plan.nodes */
    int local_rank; /* among the ranks of that node */
    int cross_rank; /* its node's index among the nodes that have this local rank */
};

struct plan_node {
    const struct alloc_node *host; /* borrowed from the allocation */
    int nlocal;                    /* ranks on this node */
    int *ranks;                    /* owned: rank numbers, by local rank */
};

struct plan {
    struct plan_rank *ranks; /* owned */
    int nranks;
    struct plan_node *nodes; /* owned */
    int nnodes;
    int *cross_sizes;    /* owned: by local rank, how many nodes have it */
    const char *np_from; /* where the number of ranks came from: "-np", "slots" */
};

static inline const struct alloc_node *plan_host(const struct plan *p, int rank)
{
    return p->nodes[p->ranks[rank].node].host;
}

/* NULL with `err`: more ranks than slots, say; it names the option that allows it. */
struct plan *plan_make(const struct opts *opts, const struct alloc *alloc,
                       struct ddp_err *err);
/* The most ranks on one node, by its slots and --nproc-per-node. -1 with `err`. */
int plan_cap(const struct opts *opts, const struct alloc_node *node, int *cap,
             struct ddp_err *err);
/* Add a node with so many ranks, which get the highest numbers; returns its index. */
int plan_add_node(struct plan *p, const struct alloc_node *host, int nlocal);
void plan_destroy(struct plan *p);

/* CROSS_SIZE as in Horovod: the number of nodes that have the local rank of `rank`. */
int plan_cross_size(const struct plan *p, int rank);

#endif
