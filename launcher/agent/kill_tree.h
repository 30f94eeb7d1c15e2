/* launcher/agent/kill_tree.h - every process below this one, wherever it has crept
 *
 * A rank's children may leave its session and its process group; being descendants of a
 * subreaper they cannot leave the tree. Found by one look through /proc.
 */
#ifndef LAUNCHER_AGENT_KILL_TREE_H
#define LAUNCHER_AGENT_KILL_TREE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Who is to be left out of it. */
enum kill_tree_rule {
    KILL_TREE_TAKE,
    KILL_TREE_PASS, /* not this one */
    KILL_TREE_SPARE /* neither this one nor anything below it */
};

/* Send `sig` to each descendant of this process, as `rule` allows (NULL: to all). Returns
 * how many got it. */
int kill_tree_signal(int sig,
                     enum kill_tree_rule (*rule)(pid_t pid, pid_t group, void *arg),
                     void *arg);

/* Who is left, for people: "process 4711 (sleep) of user root, state S in
 * hrtimer_nanosleep", joined by "; "; malloc'ed, NULL when nobody is. */
char *kill_tree_describe(enum kill_tree_rule (*rule)(pid_t pid, pid_t group, void *arg),
                         void *arg);

/* For the last moment: KILL descendants and reap until none is left, none can be
 * signalled, or `deadline_ms`. Returns whether none is left. */
bool kill_tree_reap(int64_t deadline_ms);

#endif
