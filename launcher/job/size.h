/* launcher/job/size.h - how many nodes a job may have, lose and gain
 *
 * By its options and its allocation; see also job_may_gain() and job_hosts_most().
 */
#ifndef LAUNCHER_JOB_SIZE_H
#define LAUNCHER_JOB_SIZE_H

#include "launcher/job/state.h"

int job_losses(const struct job *j); /* lost nodes that it survives; -1: any number */
bool job_is_spare(const struct job *j, size_t node); /* gets no rank at first */

#endif
