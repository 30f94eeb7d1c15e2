/* launcher/agent/kill_tree.h - signal every descendant of this process
 *
 * A rank's children may leave its session and its process group, but as descendants of a
 * subreaper they stay in its process tree, which one scan of /proc finds.
 */
#ifndef LAUNCHER_AGENT_KILL_TREE_H
#define LAUNCHER_AGENT_KILL_TREE_H

#include "common/ancestry.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* What to do with a descendant. */
enum kill_tree_rule {
    KILL_TREE_TAKE,
    KILL_TREE_PASS, /* skip it */
    KILL_TREE_SPARE /* skip it and its descendants */
};

typedef enum kill_tree_rule kill_tree_fn(const struct ancestry_proc *p, void *arg);

/* Send `sig` to each descendant of this process that `rule` takes (NULL: to all). Returns
 * how many were signalled. */
int kill_tree_signal(int sig, kill_tree_fn *rule, void *arg);

/* The remaining processes as text: "process 4711 (sleep) of uid 0, state S in
 * hrtimer_nanosleep", joined by "; "; malloc'ed, NULL when none is left. */
char *kill_tree_describe(kill_tree_fn *rule, void *arg);

/* A rule that passes programs of ours, "ddprun-...": they end when their agent has, and
 * remove their files. */
enum kill_tree_rule kill_tree_pass_helpers(const struct ancestry_proc *p, void *arg);

/* SIGKILL descendants, helpers only after a while, and reap them until none is left, none
 * can be signalled, or after limit_ms. Returns whether none is left. */
bool kill_tree_reap(int64_t limit_ms);

#endif
