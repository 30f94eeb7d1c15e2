/* launcher/plugins/mpi/shm_cleanup.h - remove shared memory that killed MPI programs
 * leave
 *
 * The ranks of a node share segments in /dev/shm, which they remove when they exit
 * normally. Both MPIs derive the names from identifiers that we chose, so the job's
 * segments are known and no others are touched. Call when no rank is left.
 */
#ifndef LAUNCHER_PLUGINS_MPI_SHM_CLEANUP_H
#define LAUNCHER_PLUGINS_MPI_SHM_CLEANUP_H

#include <stdint.h>

/* MPICH 5: named by the key-value space (hashed to its world_id), and the node. */
void shm_cleanup_mpich(const char *kvsname, uint32_t node);
/* Open MPI 4 (btl/vader): named by the PMIx namespace, for each of the `nlocal` local
 * ranks. The PMIx server removes what ranks have registered with it; this covers segments
 * that were not registered yet, or whose server has exited. */
void shm_cleanup_openmpi(const char *nspace, uint32_t nlocal);

#endif
