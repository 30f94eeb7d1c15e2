/* launcher/job/job.h - one launch, from its allocation to its exit code
 *
 * A job is a state machine (table in job.c) in one event loop. Every failure is passed to
 * the job as a cause (policy/cause.h); the earliest one decides the error line and the
 * exit code.
 *
 * job_create() opens no descriptors, so the process may fork after it: the agent of this
 * machine is such a fork, made before the loop exists, and reads its node assignment from
 * the same struct.
 */
#ifndef LAUNCHER_JOB_JOB_H
#define LAUNCHER_JOB_JOB_H

#include "launcher/alloc/alloc.h"
#include "launcher/job/peers.h"
#include "launcher/opts.h"
#include "launcher/transport/local.h"

struct job;

/* All are borrowed for the job's lifetime. With `peers` (NULL: none) every node has
 * already connected and no agent is started on other hosts. Fails with one line when
 * there is no valid plan. */
struct job *job_create(const struct opts *opts, struct alloc *alloc, struct peers *peers,
                       struct ddp_err *err);
void job_destroy(struct job *j);

/* Argument for log_setup(): --log-level, or the level of --verbose; NULL: quiet. */
const char *job_log_level(const struct opts *opts);

/* Does the job use this machine, so that an agent must be forked? */
bool job_wants_local_agent(const struct job *j);

/* job_run_agent() is for the forked child, job_run() for the parent: it runs the job to
 * its end. Both return the exit code of their process. */
int job_run_agent(struct job *j, struct local_agent *self);
int job_run(struct job *j, const struct local_agent *local);
/* After job_destroy(), in the launcher or in an agent that has lost it: removes the files
 * of launchers that were killed (control/rundir.h). */
void job_clean(const struct local_agent *local);

#endif
