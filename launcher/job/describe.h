/* launcher/job/describe.h - what is to be run, and where: before anything is started */
#ifndef LAUNCHER_JOB_DESCRIBE_H
#define LAUNCHER_JOB_DESCRIBE_H

#include "launcher/job/state.h"

bool job_forks_agent(const struct job *j, size_t node); /* is its agent a fork of ours? */
bool job_is_local(const struct job *j); /* on this machine alone, by the short way */
/* How many nodes it may lose, by its options and allocation; see also job_may_gain() and
 * job_hosts_most(). */
int job_losses(const struct job *j); /* lost nodes that it survives; -1: any number */
bool job_is_spare(const struct job *j, size_t node); /* gets no rank at first */
int job_choose_transport(struct job *j, struct ddp_err *err);
int job_describe(struct job *j, struct ddp_err *err);
int job_plan(struct job *j, struct ddp_err *err);      /* if all slots are known */
int job_make_plan(struct job *j, struct ddp_err *err); /* they are */
void job_forget_plan(struct job *j);
void job_share_of(const struct job *j, int place, struct msg_share *share);
void job_hosts(const struct job *j, struct msg_hosts *hosts);

#endif
