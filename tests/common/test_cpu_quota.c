#include "tests/support/suite.h"

#include "common/cpu_quota.h"
#include "common/mem.h"

#include <stdlib.h>

static void put(const char *root, const char *path, const char *text)
{
    char *full = xasprintf("%s%s", root, path);
    put_file(full, text);
    free(full);
}

TEST(the_least_quota_of_all_levels_counts)
{
    char *root = temp_dir();
    ck_assert_int_eq(cpu_quota(root), 0);
    put(root, "/proc/self/cgroup", "1:name=systemd:/old\n0::/a/b\n");
    put(root, "/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
    ck_assert_int_eq(cpu_quota(root), 0);
    put(root, "/sys/fs/cgroup/a/cpu.max", "250000 100000\n");
    ck_assert_int_eq(cpu_quota(root), 3);
    put(root, "/sys/fs/cgroup/cpu.max", "100000 100000\n");
    ck_assert_int_eq(cpu_quota(root), 1);
    free(root);
}

TEST(version_1_has_two_files)
{
    char *root = temp_dir();
    put(root, "/proc/self/cgroup", "5:cpuset:/x\n4:cpuacct,cpu:/a/b\n0::/\n");
    put(root, "/sys/fs/cgroup/cpu/a/b/cpu.cfs_quota_us", "-1\n");
    put(root, "/sys/fs/cgroup/cpu/a/b/cpu.cfs_period_us", "100000\n");
    put(root, "/sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "50000\n");
    put(root, "/sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n");
    ck_assert_int_eq(cpu_quota(root), 0); /* x is of another controller */
    put(root, "/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "150000\n");
    put(root, "/sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "50000\n");
    ck_assert_int_eq(cpu_quota(root), 3);
    /* in a container /a/b is not visible, and mounted as the root */
    put(root, "/proc/self/cgroup", "4:cpu:/docker/a\n");
    ck_assert_int_eq(cpu_quota(root), 0);
    put(root, "/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "200000\n");
    put(root, "/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    ck_assert_int_eq(cpu_quota(root), 2);
    free(root);
}
