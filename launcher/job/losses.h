/* launcher/job/losses.h - nodes that do not start, are lost, or leave
 *
 * The ranks of a lost node count as ended. The loss ends the attempt, unless the node was
 * a spare, or only the rest of its output was awaited. See also job_node_lost() and
 * job_host_failed() in plugin.h.
 */
#ifndef LAUNCHER_JOB_LOSSES_H
#define LAUNCHER_JOB_LOSSES_H

#include "launcher/job/state.h"

void job_count_exit(struct job *j); /* one rank fewer runs */
/* Count the ranks of a node that have not exited: it is lost, or SIGKILL failed. */
void job_give_up_ranks(struct job *j, const struct job_node *n);

/* A host does not start, or has joined and cannot be used: one line with its name. */
void job_node_failed(struct job *j, unsigned node, const char *line);
/* Close a link: the nodes reached over it are lost, or have failed to start. */
void job_drop_link(struct job *j, struct link *l, const char *why);
/* Those without ranks whose hosts are no longer offered: their agents end. */
void job_dismiss_leaving(struct job *j);

#endif
