/* launcher/job/attempt.h - one attempt to run all ranks, and the next one */
#ifndef LAUNCHER_JOB_ATTEMPT_H
#define LAUNCHER_JOB_ATTEMPT_H

#include "launcher/job/state.h"

void job_prepare(struct job *j); /* this attempt: orders follow when nothing holds it */
void job_started(struct job *j, const char *why); /* every node has its orders */
void job_welcome(struct job *j, unsigned node);   /* a node that has joined: its orders */
void job_renew_rank(struct job *j, int rank);     /* it is about to be started */
void job_next_attempt(struct job *j); /* every node has ended the ranks of this one */

#endif
