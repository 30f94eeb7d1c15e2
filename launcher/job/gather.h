/* launcher/job/gather.h - start agents, or take those that have connected by themselves
 */
#ifndef LAUNCHER_JOB_GATHER_H
#define LAUNCHER_JOB_GATHER_H

#include "launcher/job/state.h"

int job_gather(struct job *j, struct ddp_err *err);
void job_take_peers(struct job *j);
void job_gather_close(struct job *j);

/* For the table in job.c. */
void job_check_gathering(struct job *j); /* has every node joined or failed? */
int64_t job_limit_gathering(const struct job *j);
void job_late_gathering(struct job *j);

/* An agent could not start one below it: one line with its name. */
void job_unreached(struct job *j, unsigned node, const char *line);
void job_node_joined(struct job *j, unsigned node, struct link *l,
                     struct msg_hello *hello);

#endif
