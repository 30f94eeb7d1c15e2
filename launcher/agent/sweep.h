/* launcher/agent/sweep.h - every process below this one, wherever it has crept
 *
 * A rank's children may leave its session and its process group; being descendants of a
 * subreaper they cannot leave the tree. Found by one look through /proc.
 */
#ifndef LAUNCHER_AGENT_SWEEP_H
#define LAUNCHER_AGENT_SWEEP_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Send `sig` to each descendant of this process, but for those `skip` says no to (by
 * process group; NULL: none). Returns how many got it. */
int sweep_signal(int sig, bool (*skip)(pid_t group, void *arg), void *arg);

/* For the last moment: KILL descendants and reap until none is left, or until
 * `deadline_ms`. Returns whether none is left. */
bool sweep_out(int64_t deadline_ms);

#endif
