/* launcher/plugins/spawn/spawn_place.h - where the processes of a spawned job run */
#ifndef LAUNCHER_PLUGINS_SPAWN_SPAWN_PLACE_H
#define LAUNCHER_PLUGINS_SPAWN_SPAWN_PLACE_H

#include "launcher/job/state.h"

/* Place `n` processes on nodes of the job: on free slots first, in the order of the
 * nodes, and the rest in turn. `only`, a list of hosts, may be NULL: any. `busy` and `on`
 * are by node: processes of other spawned jobs there, and how many are placed (returned).
 * Returns the hosts with their numbers, as for -H, malloc'ed; "": this machine alone.
 * NULL with `err`. */
char *spawn_place(const struct job *j, unsigned n, const char *only, const int *busy,
                  int *on, struct ddp_err *err);

#endif
