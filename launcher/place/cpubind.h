/* launcher/place/cpubind.h - divide a node's CPUs among its ranks
 *
 * Pure: topology, policy and number of ranks in, CPU sets out.
 */
#ifndef LAUNCHER_PLACE_CPUBIND_H
#define LAUNCHER_PLACE_CPUBIND_H

#include "launcher/opts.h"
#include "launcher/place/topo.h"

struct cpu_share {
    struct idset cpus; /* owned; the rank's affinity */
    int ncpus;         /* the rank's part of these, for OMP_NUM_THREADS */
    int numa;          /* the NUMA node of all of them, or -1 */
};

/* Fill out[0..nlocal-1], zeroed by the caller. `near[i]` is the NUMA node of rank i's
 * GPU, or -1.
 *
 * auto      disjoint shares of whole cores, near the GPU; of hardware threads when there
 *           are more ranks than cores
 * core      the first core of that share
 * hwthread  the first hardware thread of that share
 * numa      the whole NUMA node in which the share begins, shared with other ranks
 * socket    likewise the whole socket
 *
 * Fails when there are more ranks than cores (core) or hardware threads (auto, hwthread).
 */
int cpubind(enum bind_to policy, const struct topo *t, const int *near, int nlocal,
            struct cpu_share *out, struct ddp_err *err);

#endif
