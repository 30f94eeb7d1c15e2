/* launcher/peer/pmi.h - the name that Hydra has given to a start of several processes
 *
 * Hydra puts nothing into the environment that tells one mpiexec from another; but each
 * process has a descriptor (PMI_FD) to its proxy, which answers in the PMI-1 "simple"
 * wire protocol: lines of key=value. Asked for is the name of the key-value space, the
 * same on all hosts of one mpiexec.
 */
#ifndef LAUNCHER_PEER_PMI_H
#define LAUNCHER_PEER_PMI_H

#include "include/ddprun/err.h"

#include <stdint.h>

/* malloc'ed, or NULL with `err`. Ends the conversation, so that the proxy expects no
 * more of us. */
char *pmi_space_name(int64_t deadline_ms, struct ddp_err *err);

#endif
