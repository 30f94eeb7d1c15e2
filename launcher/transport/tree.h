/* launcher/transport/tree.h - the start-up tree: which node starts which
 *
 * The hosts to be started are numbered in a row; the launcher starts the first k, and
 * host i starts hosts k(i+1) to k(i+1)+k-1: a k-ary tree computed from numbers alone. If
 * the row is no longer than k the launcher starts all of them: the tree is flat.
 */
#ifndef LAUNCHER_TRANSPORT_TREE_H
#define LAUNCHER_TRANSPORT_TREE_H

#include "launcher/link/message.h"

enum { TREE_ROOT = NODE_ALL }; /* the launcher, not a node */

/* Call `each` for every node that `node` starts. Returns how many. */
unsigned tree_below(const struct msg_hosts *hosts, unsigned node,
                    void (*each)(unsigned node, void *arg), void *arg);

#endif
