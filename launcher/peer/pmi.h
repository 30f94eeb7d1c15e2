/* launcher/peer/pmi.h - the id that Hydra gives to one mpiexec
 *
 * No environment variable of Hydra distinguishes one mpiexec from another; but each
 * process has a descriptor (PMI_FD) to its proxy, which speaks the PMI-1 "simple" wire
 * protocol: lines of key=value. The name of the key-value space is the same on all hosts
 * of one mpiexec.
 */
#ifndef LAUNCHER_PEER_PMI_H
#define LAUNCHER_PEER_PMI_H

#include "include/ddprun/err.h"

#include <stdint.h>

/* malloc'ed, or NULL with `err`. Finalizes PMI, so the proxy expects nothing more. */
char *pmi_space_name(int64_t deadline_ms, struct ddp_err *err);

#endif
