/* launcher/job/spares.h - which nodes the next attempt has: spares, fewer, or more */
#ifndef LAUNCHER_JOB_SPARES_H
#define LAUNCHER_JOB_SPARES_H

#include "launcher/job/state.h"

/* Can the job go on without the nodes that are lost at present, perhaps after a wait? */
bool job_can_replace(struct job *j);
/* Between two attempts. -1: what is left is not enough after all. */
int job_replace_lost(struct job *j, struct ddp_err *err);
void job_warn_spares(const struct job *j); /* of those that could not be started */
/* When every node has joined or failed: go on with the former, if they are enough. */
bool job_go_without(struct job *j);
bool job_survives_start(const struct job *j); /* may they become enough? */

#endif
