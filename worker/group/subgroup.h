/* worker/group/subgroup.h - groups made from others, and what they have in common */
#ifndef WORKER_GROUP_SUBGROUP_H
#define WORKER_GROUP_SUBGROUP_H

#include "worker/group/group.h"

void group_leave_family(struct ddp_group *g);

#endif
