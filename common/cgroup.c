/* common/cgroup.c - see cgroup.h */
#include "common/cgroup.h"

#include "common/mem.h"
#include "common/read_start.h"
#include "common/scoped.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* The folder of a group, and what is found out of all. */
typedef void look_fn(const char *folder, int version, void *found);

/* By the list of controllers in a line "4:cpu,cpuacct:/group", which version 2 leaves
 * empty; 0: the line is of others. */
static int version_of(char *list, const char *controller)
{
    char *rest;
    if (!*list)
        return 2;
    for (char *name = strtok_r(list, ",", &rest); name; name = strtok_r(NULL, ",", &rest))
        if (strcmp(name, controller) == 0)
            return 1;
    return 0;
}

static void each_group(const char *root, const char *controller, look_fn *look,
                       void *found)
{
    char text[4096], *rest;
    OWNED char *path = xasprintf("%s/proc/self/cgroup", root);
    if (read_start(path, text, sizeof text) <= 0)
        return;
    for (char *line = strtok_r(text, "\n", &rest); line;
         line = strtok_r(NULL, "\n", &rest)) {
        char *list = strchr(line, ':'), *group = list ? strchr(list + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = '\0';
        int version = version_of(list + 1, controller);
        for (char *end = version ? strchr(group, '\0') : NULL; end;
             end = strrchr(group, '/')) {
            *end = '\0';
            OWNED char *folder = xasprintf("%s/sys/fs/cgroup/%s%s", root,
                                           version == 1 ? controller : "", group);
            look(folder, version, found);
        }
    }
}

static const char *read_file(const char *folder, const char *file, char *text,
                             size_t size)
{
    OWNED char *path = xasprintf("%s/%s", folder, file);
    text[0] = '\0';
    read_start(path, text, size);
    return text;
}

/* Quota and period in microseconds, in version 2 in one file: "250000 100000", or "max
 * 100000"; in version 1 a quota of -1 is none. */
static void look_at_cpus(const char *folder, int version, void *found)
{
    char text[64], more[64] = "";
    long quota, period;
    int *least = found;
    read_file(folder, version == 2 ? "cpu.max" : "cpu.cfs_quota_us", text, sizeof text);
    if (version == 1)
        read_file(folder, "cpu.cfs_period_us", more, sizeof more);
    OWNED char *both = xasprintf("%s %s", text, more);
    if (sscanf(both, "%ld %ld", &quota, &period) != 2 || quota <= 0 || period <= 0)
        return;
    long cpus = (quota + period - 1) / period;
    if (cpus <= 1 << 20 && (!*least || cpus < *least))
        *least = (int)cpus;
}

int cgroup_cpus(const char *root)
{
    int least = 0;
    each_group(root, "cpu", look_at_cpus, &least);
    return least;
}

/* The number after `name` in a file. */
static bool read_number(const char *folder, const char *file, const char *name,
                        uint64_t *n)
{
    char text[8192];
    const char *at = strstr(read_file(folder, file, text, sizeof text), name);
    return at && sscanf(at + strlen(name), "%" SCNu64, n) == 1;
}

static void look_at_memory(const char *folder, int version, void *found)
{
    bool two = version == 2;
    uint64_t most, used, files, *least = found;
    if (!read_number(folder, two ? "memory.max" : "memory.limit_in_bytes", "", &most) ||
        !read_number(folder, two ? "memory.current" : "memory.usage_in_bytes", "", &used))
        return;
    if (read_number(folder, "memory.stat", two ? "\nfile " : "\ntotal_cache ", &files))
        used -= files < used ? files : used;
    uint64_t left = most > used ? most - used : 0;
    *least = left < *least ? left : *least;
}

uint64_t cgroup_memory_left(const char *root)
{
    uint64_t least = UINT64_MAX;
    each_group(root, "memory", look_at_memory, &least);
    return least;
}
