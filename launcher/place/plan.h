/* launcher/place/plan.h - which rank runs where, with which CPUs and which GPU
 *
 * A value: made by plan_make() from the options and the allocation, then const. Ranks are
 * numbered 0..nranks-1; a node's ranks have local ranks 0..n-1 in rank order. Nodes
 * without a rank are left out. Node 0 is the node of rank 0: the master node.
 *
 * CPUs and GPUs of a node are known only there. The plan therefore says how many share
 * the node and the policy; the agent turns that into CPU sets and devices (cpubind.h,
 * gpubind.h) and, for --dry-run, the launcher does the same for this machine.
 */
#ifndef LAUNCHER_PLACE_PLAN_H
#define LAUNCHER_PLACE_PLAN_H

#include "launcher/alloc/alloc.h"

struct plan_rank {
    int node;       /* index into plan.nodes */
    int local_rank; /* among the ranks of that node */
};

struct plan_node {
    const struct alloc_node *host; /* borrowed from the allocation */
    int nlocal;                    /* ranks here */
    int *ranks;                    /* owned: their numbers, by local rank */
};

struct plan {
    struct plan_rank *ranks; /* owned */
    int nranks;
    struct plan_node *nodes; /* owned */
    int nnodes;
    const char *np_from; /* where the number of ranks came from: "-np", "slots" */
};

/* More ranks than slots is refused with both numbers and the option that settles it. */
struct plan *plan_make(const struct opts *opts, const struct alloc *alloc,
                       struct ddp_err *err);
void plan_destroy(struct plan *p);

/* CROSS_RANK and CROSS_SIZE in Horovod's sense: the place of this rank's node among the
 * nodes that have its local rank, and their number. */
int plan_cross_rank(const struct plan *p, int rank);
int plan_cross_size(const struct plan *p, int rank);

#endif
