/* launcher/plugins/spawn/spawn_start.h - starts the ddprun of a spawned job */
#ifndef LAUNCHER_PLUGINS_SPAWN_SPAWN_START_H
#define LAUNCHER_PLUGINS_SPAWN_SPAWN_START_H

#include "launcher/job/state.h"
#include "launcher/link/message.h"

/* With the options of this job, for what `m` asks, on `hosts` (spawn_place()). Returns
 * its pid, and in *fd this end of the link to it, whose other end is its CHILD_EXTRA_FD;
 * -1. */
pid_t spawn_start(const struct job *j, const struct msg_spawn *m, const char *number,
                  const char *hosts, int *fd, struct ddp_err *err);

#endif
