/* launcher/job/gather.h - start agents, or use those that have connected */
#ifndef LAUNCHER_JOB_GATHER_H
#define LAUNCHER_JOB_GATHER_H

#include "launcher/job/state.h"

/* Start an agent on every wanted node, by j->transport. -1 with `err`. */
int job_gather(struct job *j, struct ddp_err *err);
/* Use the links of j->peers, which have connected already: no agent is started. */
void job_take_peers(struct job *j);
/* Free what both have made. */
void job_gather_close(struct job *j);

/* For the table in job.c. */
void job_check_gathering(struct job *j); /* has every node joined or failed? */
int64_t job_limit_gathering(const struct job *j);
void job_late_gathering(struct job *j);

/* An agent could not start one below it: one line with its name. */
void job_unreached(struct job *j, unsigned node, const char *line);
/* The HELLO of a node has arrived over `l`; takes the contents of `hello` over. */
void job_node_joined(struct job *j, unsigned node, struct link *l,
                     struct msg_hello *hello);

#endif
