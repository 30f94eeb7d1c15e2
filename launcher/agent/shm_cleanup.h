/* launcher/agent/shm_cleanup.h - memory that MPI programs leave behind when they are
 * killed
 *
 * Ranks of a node share memory under a name in /dev/shm, which they remove themselves
 * when they end in order. Both MPIs make the names from what we have told them, so that
 * ours are known and nobody else's is touched. To be called when no rank is left.
 */
#ifndef LAUNCHER_AGENT_SHM_CLEANUP_H
#define LAUNCHER_AGENT_SHM_CLEANUP_H

#include <stdint.h>

/* MPICH 5: by the name of the store of keys (its world_id), and the node. */
void shm_cleanup_mpich(const char *space, uint32_t node);
/* Open MPI 4 (btl/vader): by the PMIx namespace, for each of the node's `nlocal` ranks.
 * The PMIx server removes what a rank has asked it to remove; this is for what was made
 * before the server was asked, or when it was gone. */
void shm_cleanup_openmpi(const char *nspace, uint32_t nlocal);

#endif
