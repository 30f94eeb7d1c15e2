/* launcher/plugins/mpi/pmix_world.h - job data that the PMIx server provides to its ranks
 *
 * The same keys as mpirun's; Open MPI 4.1 needs at least the two maps, and LOCAL_RANK and
 * NODE_RANK as 16-bit values.
 */
#ifndef LAUNCHER_PLUGINS_MPI_PMIX_WORLD_H
#define LAUNCHER_PLUGINS_MPI_PMIX_WORLD_H

#include "launcher/link/message.h"
#include "launcher/link/rankmap.h"

/* Register the namespace and this node's ranks with libpmix, which must be initialized.
 * `dir` is the directory for the ranks' session files. */
int pmix_world_register(const struct msg_serve *serve, const struct rankmap *map,
                        const char *dir, struct ddp_err *err);
/* Register another job, of which no rank is served here; `lines` as in msg_serve.map. */
int pmix_world_add(const char *nspace, uint32_t nranks, const struct strv *lines,
                   struct ddp_err *err);

#endif
