/* launcher/job/describe.h - what is to be run, and where: before anything is started
 *
 * In this order: job_choose_transport(), job_describe(), job_plan(). Calls that can fail
 * return -1 with one line in `err`.
 */
#ifndef LAUNCHER_JOB_DESCRIBE_H
#define LAUNCHER_JOB_DESCRIBE_H

#include "launcher/job/state.h"

/* Sets j->transport, by which agents are started on other hosts. */
int job_choose_transport(struct job *j, struct ddp_err *err);
/* Fills j->job, the description of the job that all nodes get, except the fields that
 * depend on the plan. */
int job_describe(struct job *j, struct ddp_err *err);
/* Makes the plan if the slots of all nodes are known, and chooses the nodes on which an
 * agent is wanted: those of the plan and spares, or all. */
int job_plan(struct job *j, struct ddp_err *err);
/* Makes j->plan and j->ranks, in place of the last attempt's; all slots are known. */
int job_make_plan(struct job *j, struct ddp_err *err);
void job_forget_plan(struct job *j); /* frees both */

/* The orders of the node at `place` in the plan; the caller finishes `share`. */
void job_share_of(const struct job *j, int place, struct msg_share *share);
/* The hosts on which agents are to be started, for a node_starter; to be finished. */
void job_hosts(const struct job *j, struct msg_hosts *hosts);

/* Is the agent of this node a fork of ours? */
bool job_forks_agent(const struct job *j, size_t node);
/* A job on this machine alone, whose agent gets its orders when it is forked. */
bool job_is_local(const struct job *j);
bool job_is_spare(const struct job *j, size_t node); /* it gets no rank at first */
/* How many lost nodes the job survives, by its options and allocation; -1: any number.
 * See also job_may_gain() and job_hosts_most(). */
int job_losses(const struct job *j);

#endif
