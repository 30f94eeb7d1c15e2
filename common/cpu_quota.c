/* common/cpu_quota.c - see cpu_quota.h */
#include "common/cpu_quota.h"

#include "common/mem.h"
#include "common/read_start.h"
#include "common/scoped.h"

#include <stdio.h>
#include <string.h>

/* One file has "250000 100000" or "max 100000", quota and period in microseconds, or two
 * have one number each, -1 for no quota. */
static const struct version {
    const char *folder, *files[2];
} versions[] = {
    {"/sys/fs/cgroup", {"cpu.max"}},
    {"/sys/fs/cgroup/cpu", {"cpu.cfs_quota_us", "cpu.cfs_period_us"}},
};

static int quota_of(const char *root, const struct version *v, const char *group)
{
    char text[128] = "";
    long quota, period;
    for (size_t i = 0; i < ARRAY_LEN(v->files) && v->files[i]; i++) {
        OWNED char *path = xasprintf("%s%s%s/%s", root, v->folder, group, v->files[i]);
        size_t n = strlen(text);
        read_start(path, text + n, sizeof text - n);
    }
    if (sscanf(text, "%ld %ld", &quota, &period) != 2 || quota <= 0 || period <= 0)
        return 0;
    long cpus = (quota + period - 1) / period;
    return cpus > 1 << 20 ? 0 : (int)cpus;
}

/* By the list of controllers in a line "4:cpu,cpuacct:/group"; version 2 lists none. */
static const struct version *version_of(char *list)
{
    char *rest;
    if (!*list)
        return &versions[0];
    for (char *name = strtok_r(list, ",", &rest); name; name = strtok_r(NULL, ",", &rest))
        if (strcmp(name, "cpu") == 0)
            return &versions[1];
    return NULL;
}

int cpu_quota(const char *root)
{
    char text[4096], *rest;
    int least = 0;
    OWNED char *path = xasprintf("%s/proc/self/cgroup", root);
    if (read_start(path, text, sizeof text) <= 0)
        return 0;
    for (char *line = strtok_r(text, "\n", &rest); line;
         line = strtok_r(NULL, "\n", &rest)) {
        char *list = strchr(line, ':'), *group = list ? strchr(list + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = '\0';
        const struct version *v = version_of(list + 1);
        /* up to the root, which is a container's own group where that is mounted there */
        for (char *end = v ? strchr(group, '\0') : NULL; end; end = strrchr(group, '/')) {
            *end = '\0';
            int cpus = quota_of(root, v, group);
            least = cpus && (!least || cpus < least) ? cpus : least;
        }
    }
    return least;
}
