/* worker/group/subgroup.h - groups made from a parent group, and the family they form
 */
#ifndef WORKER_GROUP_SUBGROUP_H
#define WORKER_GROUP_SUBGROUP_H

#include "worker/group/group.h"

void group_leave_family(struct ddp_group *g);

#endif
