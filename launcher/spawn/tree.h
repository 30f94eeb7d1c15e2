/* launcher/spawn/tree.h - who starts whom
 *
 * The hosts that are to be started stand in a row; the launcher starts the first k of
 * them, and the one at place i those at k(i+1) to k(i+1)+k-1: a k-ary tree by numbers
 * alone. With a row no longer than k the launcher starts them all: that is "flat".
 */
#ifndef LAUNCHER_SPAWN_TREE_H
#define LAUNCHER_SPAWN_TREE_H

#include "launcher/link/message.h"

enum { TREE_ROOT = NODE_ALL }; /* the launcher, which is no node */

/* Call `each` for those that `node` starts. Returns how many. */
unsigned tree_below(const struct msg_hosts *hosts, unsigned node,
                    void (*each)(unsigned node, void *arg), void *arg);

#endif
