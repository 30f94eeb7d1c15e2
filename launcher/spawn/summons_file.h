/* launcher/spawn/summons_file.h - summons for agents that are given no stdin
 *
 * A file that only its user can read, in his home directory, which the hosts of a cluster
 * share; its name stands in the agent's arguments, where others may see it, and nothing
 * else does. The key in it is worth something until the job has begun; the file is
 * removed when the agent's carrier is.
 */
#ifndef LAUNCHER_SPAWN_SUMMONS_FILE_H
#define LAUNCHER_SPAWN_SUMMONS_FILE_H

#include "launcher/link/summons.h"

/* Returns the path, malloc'ed, or NULL with `err`. */
char *summons_file_write(const char *words, struct ddp_err *err);
/* Refuses a file that is not ours, or that others can read. */
int summons_file_read(const char *path, struct summons *s, struct ddp_err *err);

#endif
