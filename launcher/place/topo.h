/* launcher/place/topo.h - the CPUs of a machine: cores, NUMA nodes, sockets
 *
 * hwloc knows, but linking it would cost every launch, and loading it on a machine with
 * hundreds of CPUs costs milliseconds. So it lives in a small program of its own,
 * ddprun-topo, which is run when a policy needs it and prints what it found; this is the
 * reader of that text. Tests feed the same reader from XML and synthetic topologies.
 */
#ifndef LAUNCHER_PLACE_TOPO_H
#define LAUNCHER_PLACE_TOPO_H

#include "common/idset.h"
#include "include/ddprun/err.h"

struct topo_pu {
    int cpu;                /* as sched_setaffinity counts */
    int core, numa, socket; /* hwloc's logical numbers */
};

struct topo {
    struct topo_pu *pus; /* owned; neighbours share cores, caches, NUMA nodes */
    int npus;
};

/* This machine. The program is looked for beside the running one, in its parent folder
 * and where it is installed. Waits at most 10 s. */
int topo_load(struct topo *t, struct ddp_err *err);

/* The text ddprun-topo prints: a line per CPU, "cpu core numa socket". */
int topo_parse(const char *text, struct topo *t, struct ddp_err *err);

/* Forget CPUs that are not in `allowed`. */
void topo_restrict(struct topo *t, const struct idset *allowed);

void topo_finish(struct topo *t);

#endif
