/* launcher/transport/tree.h - the start-up tree: which node starts which
 *
 * The hosts to be started are numbered in a row; the launcher starts the first k, and
 * host i starts hosts k(i+1) to k(i+1)+k-1: a k-ary tree computed from numbers alone. If
 * the row is no longer than k the launcher starts all of them: the tree is flat.
 */
#ifndef LAUNCHER_TRANSPORT_TREE_H
#define LAUNCHER_TRANSPORT_TREE_H

#include "launcher/link/bootstrap.h"
#include "launcher/link/message.h"

enum { TREE_ROOT = NODE_ALL }; /* the launcher, not a node */

/* Call `each` for every node that `node` starts. Returns how many. */
unsigned tree_below(const struct msg_hosts *hosts, unsigned node,
                    void (*each)(unsigned node, void *arg), void *arg);

/* The row of the nodes that are to be started, for a tree in which their agents connect
 * to each other (link/bootstrap.h), whatever has started them. Zero: there is none. */
struct tree_row {
    unsigned width;
    unsigned *nodes; /* owned */
    unsigned *place; /* owned: by node, its index in `nodes` */
    size_t n;
};
void tree_row_init(struct tree_row *t, const struct msg_hosts *hosts, unsigned width);
void tree_row_finish(struct tree_row *t);
/* Set where s->node listens, and its parent. `job`: the job's key. */
void tree_row_set(const struct tree_row *t, const struct msg_hosts *hosts,
                  const struct secret *job, struct bootstrap *s);

#endif
