#include "tests/support/suite.h"

#include "common/affinity.h"

#include <errno.h>

/* The kernel of a machine with more CPUs than a cpu_set_t has room for: CPU 5000 is one.
 */
enum { CPUS = 6000, LAST = 5000 };

int __wrap_sched_getaffinity(pid_t pid, size_t size, cpu_set_t *set);

int __wrap_sched_getaffinity(pid_t pid, size_t size, cpu_set_t *set)
{
    errno = pid ? ESRCH : EINVAL;
    if (pid || size * 8 < CPUS)
        return -1;
    CPU_ZERO_S(size, set);
    CPU_SET_S(3, size, set);
    CPU_SET_S(LAST, size, set);
    return 0;
}

TEST(a_machine_may_have_more_cpus_than_a_cpu_set_t)
{
    struct affinity a;
    ck_assert_int_eq(affinity_get(0, &a), 0);
    ck_assert_int_eq(affinity_count(&a), 2);
    ck_assert(affinity_has(&a, 3) && affinity_has(&a, LAST));
    ck_assert(!affinity_has(&a, 4) && !affinity_has(&a, -1));
    ck_assert(!affinity_has(&a, AFFINITY_CPUS));
    ck_assert_int_eq(affinity_cpus_here(), 2);
}

TEST(masks_are_added_whole)
{
    struct affinity all = {0}, one = {0};
    CPU_SET_S(LAST - 1, sizeof one, one.sets);
    ck_assert_int_eq(affinity_get(0, &all), 0);
    affinity_add(&all, &one);
    ck_assert_int_eq(affinity_count(&all), 3);
    ck_assert(affinity_has(&all, LAST - 1));
}

TEST(a_process_that_has_ended_has_no_cpus)
{
    struct affinity a;
    ck_assert_int_eq(affinity_get(1, &a), -1);
    ck_assert_int_eq(errno, ESRCH);
    ck_assert_int_eq(affinity_count(&a), 0);
}
