/* launcher/place/topo.h - the CPUs of a machine: cores, NUMA nodes, sockets
 *
 * From hwloc. Linking it would slow down every launch, and loading a topology of hundreds
 * of CPUs takes milliseconds. So only ddprun-topo links it, a small program that is run
 * when a policy needs it and prints the topology as text; this parses the text. Tests
 * feed the parser from XML and synthetic topologies.
 */
#ifndef LAUNCHER_PLACE_TOPO_H
#define LAUNCHER_PLACE_TOPO_H

#include "common/idset.h"
#include "include/ddprun/err.h"

struct topo_pu {
    int cpu;                /* as in sched_setaffinity() */
    int core, numa, socket; /* hwloc's logical numbers */
};

struct topo {
    struct topo_pu *pus; /* owned; in topological order */
    int npus;
};

/* This machine. Searches ddprun-topo beside the running program, in its parent folder and
 * where it is installed. Waits at most 10 s. */
int topo_load(struct topo *t, struct ddp_err *err);

/* The text ddprun-topo prints: a line per CPU, "cpu core numa socket". */
int topo_parse(const char *text, struct topo *t, struct ddp_err *err);

/* Remove CPUs that are not in `allowed`. */
void topo_restrict(struct topo *t, const struct idset *allowed);

void topo_finish(struct topo *t);

#endif
