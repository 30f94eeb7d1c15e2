/* launcher/spawn/bootstrap_file.h - summons for agents that are given no stdin
 *
 * A file that only its user can read, in his home directory, which the hosts of a cluster
 * share; its name stands in the agent's arguments, where others may see it, and nothing
 * else does. Whoever reads it removes it; what nobody has read goes with its carrier.
 */
#ifndef LAUNCHER_SPAWN_BOOTSTRAP_FILE_H
#define LAUNCHER_SPAWN_BOOTSTRAP_FILE_H

#include "launcher/link/bootstrap.h"

/* Returns the path, malloc'ed, or NULL with `err`. */
char *bootstrap_file_write(const char *words, struct ddp_err *err);
/* Refuses a file that is not ours, or that others can read. Removes it when it has the
 * name and the words that bootstrap_file_write() gives. */
int bootstrap_file_read(const char *path, struct bootstrap *s, struct ddp_err *err);

#endif
