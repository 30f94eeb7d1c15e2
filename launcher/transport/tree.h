/* launcher/transport/tree.h - the start-up tree: which node starts which
 *
 * The hosts to be started are in a row; the launcher starts the first k, and host i
 * starts hosts k(i+1) to k(i+1)+k-1: a k-ary tree computed from numbers alone. If the row
 * is no longer than k the launcher starts all of them: the tree is flat.
 */
#ifndef LAUNCHER_TRANSPORT_TREE_H
#define LAUNCHER_TRANSPORT_TREE_H

#include "launcher/link/bootstrap.h"
#include "launcher/link/message.h"

enum { TREE_ROOT = NODE_ALL }; /* the launcher, not a node */

struct tree_row {
    struct bootstrap_node *nodes; /* owned, with the names */
    size_t n;
    size_t *place; /* owned: by node, its index in `nodes` */
};
void tree_row_init(struct tree_row *t, const struct msg_hosts *hosts);
void tree_row_finish(struct tree_row *t);

/* How many nodes, from nodes[*first] on, `node` starts in a tree of this width. */
size_t tree_row_below(const struct tree_row *t, unsigned width, unsigned node,
                      size_t *first);

#endif
