/* launcher/job/report.h - the failure report, and --report's summary */
#ifndef LAUNCHER_JOB_REPORT_H
#define LAUNCHER_JOB_REPORT_H

#include "launcher/job/state.h"

void job_report_failure(struct job *j); /* the headline and the last lines, once */
/* One line, malloc'ed, for this node and all after it that fail for the same reason,
 * "cannot start on n[1-3]: ...". They are marked as reported. */
char *job_merge_start_failures(struct job *j, size_t node);
void job_report_summary(struct job *j); /* --report */
/* Write the failed rank's exception to our own TORCHELASTIC_ERROR_FILE, for a launcher
 * above ddprun, as torchrun does. Blocks on a file: not for the event loop. */
void job_pass_error_on(const struct job *j);
extern const struct output_hosts job_output_hosts; /* of the plan; `arg`: the job */

#endif
