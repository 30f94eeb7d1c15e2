/* launcher/job/job_impl.h - private header of launcher/job/
 *
 * In the order of a job's life: job.c, creation, states and the event loop; describe.c,
 * what is to be run and where; gather.c, agents are started; attempt.c, they get their
 * orders; shutdown.c, from the first failure or the last exit to the next attempt or the
 * end; report.c, lines for the user. Beside it: nodes.c, links to agents; messages.c,
 * handlers of their messages; heartbeat.c, liveness; io.c, output, input and terminal.
 *
 * struct job owns all of it. Nodes are numbered as in the allocation, ranks as the
 * program sees them.
 */
#ifndef LAUNCHER_JOB_JOB_IMPL_H
#define LAUNCHER_JOB_JOB_IMPL_H

#include "launcher/job/hooks.h"
#include "launcher/job/plugin.h"

/* job.c */
void job_move(struct job *j, enum job_state to, const char *why); /* writes `state` */
void job_limit(struct job *j); /* restart the time limit of the present state */

/* shutdown.c: time limits of states in ms (0: none), and handlers for when they pass */
int64_t job_limit_terminating(const struct job *j);
int64_t job_limit_draining(const struct job *j);
int64_t job_limit_leaving(const struct job *j);
int64_t job_limit_flushing(const struct job *j);
void job_late_terminating(struct job *j);
void job_late_draining(struct job *j);
void job_late_leaving(struct job *j);
void job_late_flushing(struct job *j);

int job_open_timers(struct job *j, struct ddp_err *err);
/* Report this attempt's failure, and reset the cause for the next one. */
void job_forget_cause(struct job *j);

/* nodes.c */
/* The number of its ranks: plan.nodes[n->place].ranks; 0 without a plan. */
/* Is its agent at the other end of a link of ours? */
bool job_is_direct(const struct job *j, unsigned node);
int job_ranks_on(const struct job *j, const struct job_node *n);
/* Its agent ends; it has no ranks. */
void job_node_dismiss(struct job *j, unsigned node, const char *why);
/* Add a link to the agent of `node`. HELLOs tell which nodes are reached over it: `node`,
 * and those below it in the tree. */
struct link *job_add_link(struct job *j, int fd, const struct link_keys *keys,
                          unsigned node);
/* Close it: the nodes reached over it are lost, or have failed to start. */
void job_drop_link(struct job *j, struct link *l, const char *why);
void job_close_links(struct job *j);

/* io.c */
int job_open_streams(struct job *j, struct ddp_err *err);
void job_input_more(struct job *j); /* as much as the nodes have consumed */
/* Set the mode of our terminal as the state needs it (terminal.h). */
void job_set_terminal(struct job *j);
/* Tell the agents the size of our terminal, if rank 0 has a pseudo-terminal. */
bool job_send_window(struct job *j);

/* describe.c */
bool job_forks_agent(const struct job *j, size_t node); /* is its agent a fork of ours? */
bool job_is_local(const struct job *j); /* on this machine alone, by the short way */
int job_choose_transport(struct job *j, struct ddp_err *err);
int job_describe(struct job *j, struct ddp_err *err);
int job_plan(struct job *j, struct ddp_err *err);      /* if all slots are known */
int job_make_plan(struct job *j, struct ddp_err *err); /* they are */
void job_forget_plan(struct job *j);
void job_share_of(const struct job *j, int place, struct msg_share *share);
void job_hosts(const struct job *j, struct msg_hosts *hosts);

/* gather.c: start agents, or take those that have connected by themselves */
int job_gather(struct job *j, struct ddp_err *err);
int job_take_peers(struct job *j, struct ddp_err *err);
void job_gather_check(struct job *j); /* has every node joined or failed? */
int64_t job_limit_gathering(const struct job *j);
void job_late_gathering(struct job *j);
void job_unreached(struct job *j, unsigned node, const char *line);
void job_start_failed(struct job *j, unsigned node, const char *why); /* before HELLO */
/* A host that has joined, but cannot be used; while agents are started. */
void job_node_unfit(struct job *j, unsigned node, const char *line);
void job_node_joined(struct job *j, unsigned node, struct link *l,
                     struct msg_hello *hello);

/* attempt.c */
void job_prepare(struct job *j); /* this attempt: orders follow when nothing holds it */
void job_started(struct job *j, const char *why); /* every node has its orders */
void job_next_attempt(struct job *j); /* every node has ended the ranks of this one */

/* spares.c */
int job_losses(const struct job *j); /* lost nodes that it survives; -1: any number */
bool job_is_spare(const struct job *j, size_t node); /* gets no rank at first */
/* Can the job go on without the nodes that are lost at present, perhaps after a wait? */
bool job_can_replace(struct job *j);
/* Between two attempts. -1: what is left is not enough after all. */
int job_replace_lost(struct job *j, struct ddp_err *err);
void job_warn_spares(const struct job *j); /* of those that could not be started */
/* When every node has joined or failed: go on with those that joined, if they are enough.
 */
bool job_go_without(struct job *j);
bool job_survives_start(const struct job *j); /* may they become enough? */

/* hosts.c: hosts that come and go while the job runs */
void job_make_room(struct job *j);                  /* in the allocation */
void job_host_joined(struct job *j, unsigned node); /* after the others */
int job_await_peers(struct job *j, struct ddp_err *err);
void job_welcome(struct job *j, unsigned node);     /* it becomes a spare; attempt.c */

/* Those without ranks whose hosts are no longer offered. */
void job_dismiss_leaving(struct job *j);

/* heartbeat.c */
int job_start_heartbeat(struct job *j, struct ddp_err *err);
void job_ping(struct job *j, unsigned node);
int job_handle_pong(struct job *j, unsigned node, const struct frame *f,
                    struct ddp_err *err);

/* messages.c: a frame from an agent */
void job_handle_frame(struct job *j, struct link *l, const struct frame *f);
void job_count_exit(struct job *j); /* one rank less runs */

/* report.c: lines for the user */
void job_report_failure(struct job *j); /* the headline and the last lines, once */
void job_report_summary(struct job *j); /* --report */
/* Write the failed rank's exception to our own TORCHELASTIC_ERROR_FILE, for a launcher
 * above ddprun, as torchrun does. Blocks on a file: not for the event loop. */
void job_pass_error_on(const struct job *j);
const char *job_host_of(int rank, void *arg); /* for tags: NULL on a single host */

#endif
