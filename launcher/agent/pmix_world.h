/* launcher/agent/pmix_world.h - what a PMIx server tells its ranks of their world
 *
 * The keys are those that mpirun gives; Open MPI 4.1 needs the two maps at least, and
 * LOCAL_RANK and NODE_RANK as 16 bits each.
 */
#ifndef LAUNCHER_AGENT_PMIX_WORLD_H
#define LAUNCHER_AGENT_PMIX_WORLD_H

#include "launcher/link/message.h"
#include "launcher/link/rankmap.h"

/* Register the namespace and the ranks of our node with libpmix, which has been
 * initialized. `dir` is a directory of ours for the ranks' session files. */
int pmix_world_register(const struct msg_serve *serve, const struct rankmap *map,
                        const char *dir, struct ddp_err *err);

#endif
