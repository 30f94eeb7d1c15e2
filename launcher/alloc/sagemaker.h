/* launcher/alloc/sagemaker.h - the hosts of a SageMaker job
 *
 * Every container of the job runs the same command at once. The list is in
 * /opt/ml/input/config/resourceconfig.json, or else in SM_HOSTS and
 * SM_CURRENT_HOST of AWS's toolkit. Hosts are sorted by their number (algo-2 before
 * algo-10), so that all ddprun instances agree on the order. DDPRUN_RESOURCECONFIG names
 * another file, for tests and compatible clouds.
 */
#ifndef LAUNCHER_ALLOC_SAGEMAKER_H
#define LAUNCHER_ALLOC_SAGEMAKER_H

#include "common/strv.h"
#include "include/ddprun/err.h"

#include <stdbool.h>

bool sagemaker_here(void);

/* The hosts in order, and the index of this one. */
int sagemaker_hosts(struct strv *hosts, int *current, struct ddp_err *err);

#endif
