#include "tests/support/suite.h"

#include "common/cgroup.h"
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
    ck_assert_int_eq(cgroup_cpus(root), 0);
    put(root, "/proc/self/cgroup", "1:name=systemd:/old\n0::/a/b\n");
    put(root, "/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
    ck_assert_int_eq(cgroup_cpus(root), 0);
    put(root, "/sys/fs/cgroup/a/cpu.max", "250000 100000\n");
    ck_assert_int_eq(cgroup_cpus(root), 3);
    put(root, "/sys/fs/cgroup/cpu.max", "100000 100000\n");
    ck_assert_int_eq(cgroup_cpus(root), 1);
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
    ck_assert_int_eq(cgroup_cpus(root), 0); /* x is of another controller */
    put(root, "/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "150000\n");
    put(root, "/sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "50000\n");
    ck_assert_int_eq(cgroup_cpus(root), 3);
    /* in a container /a/b is not visible, and mounted as the root */
    put(root, "/proc/self/cgroup", "4:cpu:/docker/a\n");
    ck_assert_int_eq(cgroup_cpus(root), 0);
    put(root, "/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "200000\n");
    put(root, "/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    ck_assert_int_eq(cgroup_cpus(root), 2);
    free(root);
}

TEST(the_least_memory_of_all_levels_is_left)
{
    char *root = temp_dir();
    ck_assert_uint_eq(cgroup_memory_left(root), UINT64_MAX);
    put(root, "/proc/self/cgroup", "4:cpu:/x\n3:memory:/a/b\n0::/c\n");
    put(root, "/sys/fs/cgroup/c/memory.max", "max\n");
    put(root, "/sys/fs/cgroup/c/memory.current", "100\n");
    ck_assert_uint_eq(cgroup_memory_left(root), UINT64_MAX);
    put(root, "/sys/fs/cgroup/memory.max", "1000\n");
    put(root, "/sys/fs/cgroup/memory.current", "900\n");
    ck_assert_uint_eq(cgroup_memory_left(root), 100);
    put(root, "/sys/fs/cgroup/memory.stat", "anon 500\nfile 400\n");
    ck_assert_uint_eq(cgroup_memory_left(root), 500);
    put(root, "/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "2000\n");
    put(root, "/sys/fs/cgroup/memory/a/memory.usage_in_bytes", "1900\n");
    put(root, "/sys/fs/cgroup/memory/a/memory.stat", "cache 1\ntotal_cache 200\n");
    ck_assert_uint_eq(cgroup_memory_left(root), 300);
    free(root);
}
