/* launcher/job/attempt.h - one attempt to run all ranks, and the next one */
#ifndef LAUNCHER_JOB_ATTEMPT_H
#define LAUNCHER_JOB_ATTEMPT_H

#include "launcher/job/state.h"

/* Call the hook `prepare` of plug-ins. When none of them holds the attempt any more
 * (job_hold()), every node gets its orders. */
void job_prepare(struct job *j);
/* Every node has its orders: JOB_RUNNING begins. `why` is for the log. */
void job_started(struct job *j, const char *why);
/* Send its orders to a node that has joined while ranks run. */
void job_welcome(struct job *j, unsigned node);
/* Forget the exit of a rank that is about to be started again. */
void job_renew_rank(struct job *j, int rank);
/* Start all ranks again: every node has ended those of this attempt. */
void job_next_attempt(struct job *j);

#endif
