/* common/affinity.c - see affinity.h */
#include "common/affinity.h"

int affinity_get(pid_t pid, struct affinity *a)
{
    *a = (struct affinity){0};
    return sched_getaffinity(pid, sizeof *a, a->sets);
}

bool affinity_has(const struct affinity *a, int cpu)
{
    return cpu >= 0 && CPU_ISSET_S((size_t)cpu, sizeof *a, a->sets);
}

int affinity_count(const struct affinity *a)
{
    return CPU_COUNT_S(sizeof *a, a->sets);
}

void affinity_add(struct affinity *a, const struct affinity *more)
{
    CPU_OR_S(sizeof *a, a->sets, a->sets, more->sets);
}

int affinity_cpus_here(void)
{
    struct affinity a;
    return affinity_get(0, &a) == 0 ? affinity_count(&a) : 1;
}
