/* launcher/job/failure.h - from the first failure to the signal to all ranks
 *
 * The first cause starts the escalating shutdown of all ranks (policy/grace.h), and is
 * reported as soon as they have ended, or a little later. See job_fail() and job_end() in
 * plugin.h.
 */
#ifndef LAUNCHER_JOB_FAILURE_H
#define LAUNCHER_JOB_FAILURE_H

#include "launcher/job/state.h"

/* ms for a reader to consume the rest of the output after a signal or --timeout */
enum { HURRY_MS = 2000 };

int job_failure_open(struct job *j, struct ddp_err *err);
void job_failure_close(struct job *j);

/* Report this attempt's failure, and reset the cause for the next one. */
void job_forget_cause(struct job *j);

#endif
