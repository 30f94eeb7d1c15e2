/* launcher/job/nodes.h - the links to agents, and which nodes are reached over each
 *
 * See also job_send(), job_node_connected() in plugin.h.
 */
#ifndef LAUNCHER_JOB_NODES_H
#define LAUNCHER_JOB_NODES_H

#include "launcher/job/state.h"

/* Is its agent at the other end of a link of ours? */
bool job_is_direct(const struct job *j, unsigned node);
/* The number of its ranks: plan.nodes[n->place].ranks; 0 without a plan. */
int job_ranks_on(const struct job *j, const struct job_node *n);

/* Add a link to the agent of `node`. HELLOs tell which nodes are reached over it: `node`,
 * and those below it in the tree. */
struct link *job_add_link(struct job *j, int fd, const struct link_keys *keys,
                          unsigned node);
/* Does it lead to a node that is not lost? */
bool job_link_leads(const struct job *j, const struct link *l);
/* Returns the node whose agent is at its other end; the caller closes it. */
unsigned job_forget_link(struct job *j, struct link *l);
void job_close_links(struct job *j);

#endif
