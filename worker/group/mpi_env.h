/* worker/group/mpi_env.h - the launcher's PMIx or PMI, to pass a text from rank 0 to
 * all
 *
 * mpirun, Hydra, Flux and srun --mpi offer PMIx, or PMI-1 on the descriptor PMI_FD. MPI
 * may use them in the same process before and after us, so they are not finalised
 * before the process exits.
 */
#ifndef WORKER_GROUP_MPI_ENV_H
#define WORKER_GROUP_MPI_ENV_H

#include "include/ddprun/err.h"

#include <stdint.h>

enum { MPI_ENV_VALUE = 256 }; /* size of a text, with its NUL */

/* One protocol. */
struct mpi_env {
    const char *name;
    const char *sign; /* the environment variable that shows that it is there */
    /* Called by all ranks of the job with the same key (letters, digits and '-'):
     * `value` of rank 0 is copied to all. */
    int (*share)(const char *key, int rank, int size, char value[MPI_ENV_VALUE],
                 int64_t deadline_ms, struct ddp_err *err);
};

int mpi_env_share_pmi(const char *key, int rank, int size, char value[MPI_ENV_VALUE],
                      int64_t deadline_ms, struct ddp_err *err);
int mpi_env_share_pmix(const char *key, int rank, int size, char value[MPI_ENV_VALUE],
                       int64_t deadline_ms, struct ddp_err *err);

#endif
