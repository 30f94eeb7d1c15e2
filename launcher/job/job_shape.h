/* launcher/job/job_shape.h - the job's nodes and ranks, as text for programs */
#ifndef LAUNCHER_JOB_JOB_SHAPE_H
#define LAUNCHER_JOB_JOB_SHAPE_H

#include "launcher/link/message.h"
#include "launcher/place/plan.h"

/* Set node_list, tasks_per_node, endpoints and tracker_port of `job` by the plan. Those
 * of a job that is too large for a variable stay NULL. */
void job_shape(struct msg_job *job, const struct plan *plan);

#endif
