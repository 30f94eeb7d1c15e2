/* common/cpu_quota.h - how many CPUs this process's control groups allow */
#ifndef COMMON_CPU_QUOTA_H
#define COMMON_CPU_QUOTA_H

/* The smallest CPU quota of the control group and its ancestors, of both versions, in
 * whole CPUs, rounded up; 0: none. `root` is a prefix of the paths: "" on a real machine,
 * a tree of files in tests. */
int cpu_quota(const char *root);

#endif
