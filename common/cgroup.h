/* common/cgroup.h - what this process's control groups allow it
 *
 * The group and its ancestors, of both versions, up to the root, which is a container's
 * own group where that is mounted there. `root` is a prefix of the paths: "" on a real
 * machine, a tree of files in tests.
 */
#ifndef COMMON_CGROUP_H
#define COMMON_CGROUP_H

#include <stdint.h>

/* The smallest quota of CPUs, in whole CPUs, rounded up; 0: none. */
int cgroup_cpus(const char *root);

/* The least memory left, in bytes; UINT64_MAX: no limit. The kernel's count of used
 * memory includes cached files that it would drop; they are subtracted. */
uint64_t cgroup_memory_left(const char *root);

#endif
