/* worker/group/mpi_env_no_pmix.c - in the place of mpi_env_pmix.c where PMIx is not built
 * in
 */
#include "worker/group/mpi_env.h"

#include "common/err.h"

int mpi_env_share_pmix(const char *key, int rank, int size, char value[MPI_ENV_VALUE],
                       int64_t deadline_ms, struct ddp_err *err)
{
    return err_set(err, "the launcher offers PMIx, which is not built in here; set "
                        "MASTER_ADDR and MASTER_PORT to those of a store, or DDP_MEETING "
                        "to tcp://HOST:PORT with a port of rank 0's host");
}
