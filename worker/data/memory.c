/* worker/data/memory.c - see memory.h */
#include "worker/data/memory.h"

#include "common/err.h"
#include "common/mem.h"
#include "common/read_start.h"
#include "common/scoped.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* The number that follows `name` in a small file. */
static bool read_number(const char *path, const char *name, uint64_t *n)
{
    char text[8192];
    const char *at = read_start(path, text, sizeof text) > 0 ? strstr(text, name) : NULL;
    return at && sscanf(at + strlen(name), "%" SCNu64, n) == 1;
}

/* Control groups of both versions: the line of /proc/self/cgroup, and the files. */
static const struct version {
    const char *own, *root, *most, *used, *files;
} versions[] = {
    {"0::", "/sys/fs/cgroup", "memory.max", "memory.current", "\nfile "},
    {":memory:", "/sys/fs/cgroup/memory", "memory.limit_in_bytes",
     "memory.usage_in_bytes", "\ntotal_cache "},
};

static bool read_group(const struct version *v, const char *folder, const char *file,
                       const char *name, uint64_t *n)
{
    OWNED char *path = xasprintf("%s%s/%s", v->root, folder, file);
    return read_number(path, name, n);
}

/* The least memory left in this control group and its ancestors. The kernel's count of
 * used memory includes cached files that it would drop; they are subtracted. */
static uint64_t left_in_groups(const struct version *v)
{
    char text[4096], folder[512] = "";
    uint64_t left = UINT64_MAX, most, used, files;
    const char *own = read_start("/proc/self/cgroup", text, sizeof text) > 0
                          ? strstr(text, v->own)
                          : NULL;
    if (own)
        sscanf(own + strlen(v->own), "%511s", folder);
    /* up to the root, which is a container's own group where that is mounted there */
    for (char *end = strchr(folder, '\0'); end; end = strrchr(folder, '/')) {
        *end = '\0';
        if (!read_group(v, folder, v->most, "", &most) ||
            !read_group(v, folder, v->used, "", &used))
            continue;
        if (read_group(v, folder, "memory.stat", v->files, &files))
            used -= files < used ? files : used;
        uint64_t here = most > used ? most - used : 0;
        left = here < left ? here : left;
    }
    return left;
}

/* UINT64_MAX: unknown. */
static uint64_t memory_left(void)
{
    uint64_t kb, left = UINT64_MAX;
    if (read_number("/proc/meminfo", "MemAvailable:", &kb))
        left = kb * 1024;
    for (size_t i = 0; i < ARRAY_LEN(versions); i++) {
        uint64_t here = left_in_groups(&versions[i]);
        left = here < left ? here : left;
    }
    return left;
}

int memory_fits(const char *name, double bytes, const char *cure, struct ddp_err *err)
{
    double left = (double)memory_left();
    if (bytes <= left)
        return 0;
    return err_set(err, "'%s' needs %.1f GB of memory, and %.1f GB are left: %s", name,
                   bytes / 1e9, left / 1e9, cure);
}
