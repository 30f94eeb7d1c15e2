/* launcher/job/job.h - one launch, from its allocation to its exit code
 *
 * The life of a job is a list of states; job.c has the table. Everything happens in one
 * loop; whatever goes wrong is offered to the job as a cause (policy/cause.h), the first
 * of which decides the line the user reads and the exit code.
 *
 * job_create() opens nothing and may be followed by a fork: the agent of this machine is
 * such a fork, made before the loop exists, and finds its orders in the same struct.
 */
#ifndef LAUNCHER_JOB_JOB_H
#define LAUNCHER_JOB_JOB_H

#include "launcher/alloc/alloc.h"
#include "launcher/job/peers.h"
#include "launcher/opts.h"
#include "launcher/spawn/local.h"

struct job;

/* All are borrowed for the job's life. With `peers` (NULL: none) the nodes of the
 * allocation have come by themselves, and nobody is started. Fails with one line when the
 * plan cannot be had. */
struct job *job_create(const struct opts *opts, struct alloc *alloc, struct peers *peers,
                       struct ddp_err *err);
void job_destroy(struct job *j);

/* What log_setup() is to get: --log-level, or what --verbose means; NULL: quiet. */
const char *job_log_level(const struct opts *opts);

/* Does the allocation have this machine in it, so that an agent is to be forked? */
bool job_wants_local_agent(const struct job *j);

/* In the forked child: be that agent. In the parent: run the job to its end. Both return
 * the exit code of their process. */
int job_be_agent(struct job *j, const struct local_agent *self);
int job_run(struct job *j, const struct local_agent *local);

#endif
