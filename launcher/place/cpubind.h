/* launcher/place/cpubind.h - a node's CPUs divided among its ranks
 *
 * A calculation: topology, policy and number of ranks in, CPU sets out.
 */
#ifndef LAUNCHER_PLACE_CPUBIND_H
#define LAUNCHER_PLACE_CPUBIND_H

#include "launcher/opts.h"
#include "launcher/place/topo.h"

struct cpu_share {
    struct idset cpus; /* owned; what the rank may run on */
    int ncpus;         /* of these, how many it may count as its own */
    int numa;          /* the NUMA node of all of them, or -1 */
};

/* Fill out[0..nlocal-1], zeroed by the caller. `near[i]` is the NUMA node rank i should
 * be on, for its GPU's sake, or -1.
 *
 * auto      disjoint shares of whole cores, near the GPU; of hardware threads when there
 *           are more ranks than cores
 * core      the first core of that share
 * hwthread  the first hardware thread of it
 * numa      the whole NUMA node that the share begins in, together with others there
 * socket    likewise the whole socket
 *
 * Fails when there are more ranks than what they are to be bound to. */
int cpubind(enum bind_to policy, const struct topo *t, const int *near, int nlocal,
            struct cpu_share *out, struct ddp_err *err);

#endif
