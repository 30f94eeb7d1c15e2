/* launcher/job/hosts.h - hosts that come and go while the job runs */
#ifndef LAUNCHER_JOB_HOSTS_H
#define LAUNCHER_JOB_HOSTS_H

#include "launcher/job/state.h"

void job_make_room(struct job *j);                  /* in the allocation */
void job_host_joined(struct job *j, unsigned node); /* after the others */
int job_await_peers(struct job *j, struct ddp_err *err);

#endif
