/* common/affinity.h - the CPUs that a process may run on
 *
 * The kernel refuses a mask smaller than the number of CPUs that it was started for, and
 * a cpu_set_t has room for 1,024. This one has room for as many as Linux can be built
 * for.
 */
#ifndef COMMON_AFFINITY_H
#define COMMON_AFFINITY_H

#include <sched.h>
#include <stdbool.h>
#include <sys/types.h>

enum { AFFINITY_CPUS = 8192 }; /* the largest CONFIG_NR_CPUS */

struct affinity {
    cpu_set_t sets[AFFINITY_CPUS / CPU_SETSIZE];
};

/* Of a process or thread, 0: the calling one. 0; -1 with errno, and `a` empty. */
int affinity_get(pid_t pid, struct affinity *a);

bool affinity_has(const struct affinity *a, int cpu);
int affinity_count(const struct affinity *a);

/* Add the CPUs of `more`. */
void affinity_add(struct affinity *a, const struct affinity *more);

/* The number of CPUs of the calling thread; at least 1. */
int affinity_cpus_here(void);

#endif
