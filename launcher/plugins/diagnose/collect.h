/* launcher/plugins/diagnose/collect.h - what the ranks of this node are doing
 *
 * Runs in a process of its own, started by the agent: it may wait for processes that do
 * not answer, until its deadlines.
 */
#ifndef LAUNCHER_PLUGINS_DIAGNOSE_COLLECT_H
#define LAUNCHER_PLUGINS_DIAGNOSE_COLLECT_H

#include <jansson.h>
#include <stddef.h>
#include <sys/types.h>

struct collect_rank {
    int rank;
    pid_t pid;
};

enum collect_part {
    COLLECT_ALL,
    COLLECT_CALLS, /* collectives only */
    COLLECT_STACKS /* stacks that Python writes only */
};

/* An array with an object for each of `ranks`: its process (proc.h), its connections
 * (sockets.h), its collectives (trace.h), its threads (stacks.h) or "no_stacks", why
 * there are none, and "below", its other processes; the first of them has what NCCL says
 * (ras.h). With COLLECT_CALLS "bytes" is the size of its flight recorder's answer.
 * `folder`: where the ranks have put their files (doc/hangs.md). */
json_t *collect(const char *folder, const struct collect_rank *ranks, size_t n,
                enum collect_part part);

/* Of such an array (taken over): {"idle_ms", "waiting", "known", "blocked", "stopped"}: how
 * long ago a rank has last entered a collective or a wait for a message, how many ranks
 * wait in a collective, of how many this is known, how many wait in either, and how many
 * others are stopped by a signal or a debugger. */
json_t *collect_idle(json_t *ranks);

#endif
