/* launcher/alloc/discovery.h - the hosts that --host-discovery-script prints
 *
 * "host:slots" a line, as in Horovod and Kubernetes' mpi-operator; a host alone has the
 * slots of its GPUs. Anything that a hostfile may contain is understood (hostfile.c).
 */
#ifndef LAUNCHER_ALLOC_DISCOVERY_H
#define LAUNCHER_ALLOC_DISCOVERY_H

#include "launcher/alloc/alloc.h"

/* Bytes that it may print: 10,000 hosts with long names. */
enum { DISCOVERY_MOST = 1 << 20 };

/* Append the hosts of its output to `alloc`, perhaps none. */
int discovery_parse(const char *text, size_t size, struct alloc *alloc,
                    struct ddp_err *err);

#endif
