/* launcher/job/shutdown.h - ends the job, or restarts its ranks
 *
 * When every node reports that its ranks have ended, they are restarted (--max-restarts),
 * or the failure is reported, the agents exit and the rest of the output is written. The
 * checks and time limits of these states, for the table in job.c.
 */
#ifndef LAUNCHER_JOB_SHUTDOWN_H
#define LAUNCHER_JOB_SHUTDOWN_H

#include "launcher/job/state.h"

void job_check_running(struct job *j);
void job_check_ending(struct job *j); /* terminating, draining */
void job_check_leaving(struct job *j);
void job_check_flushing(struct job *j);

/* ms; 0: none */
int64_t job_limit_terminating(const struct job *j);
int64_t job_limit_draining(const struct job *j);
int64_t job_limit_leaving(const struct job *j);
int64_t job_limit_flushing(const struct job *j);

void job_late_ending(struct job *j); /* terminating, draining */
void job_late_leaving(struct job *j);
void job_late_flushing(struct job *j);

#endif
