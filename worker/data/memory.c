/* worker/data/memory.c - see memory.h */
#include "worker/data/memory.h"

#include "common/err.h"
#include "common/mem.h"
#include "common/read_start.h"
#include "common/scoped.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* The number that follows `name` in a small file. */
static bool read_number(const char *path, const char *name, uint64_t *n)
{
    char text[8192];
    const char *at = read_start(path, text, sizeof text) > 0 ? strstr(text, name) : NULL;
    return at && sscanf(at + strlen(name), "%" SCNu64, n) == 1;
}

static bool read_group(const char *folder, const char *file, const char *name,
                       uint64_t *n)
{
    OWNED char *path = xasprintf("/sys/fs/cgroup%s/%s", folder, file);
    return read_number(path, name, n);
}

/* The least memory left in this control group and its ancestors (version 2). The
 * kernel's count of used memory includes cached files that it would drop; they are
 * subtracted. */
static uint64_t left_in_groups(void)
{
    char text[4096], folder[512] = "";
    uint64_t left = UINT64_MAX, most, used, files;
    const char *own = read_start("/proc/self/cgroup", text, sizeof text) > 0
                          ? strstr(text, "0::")
                          : NULL;
    for (bool found = own && sscanf(own, "0::%511s", folder) == 1; found && *folder;
         *strrchr(folder, '/') = '\0') {
        if (!read_group(folder, "memory.max", "", &most) ||
            !read_group(folder, "memory.current", "", &used))
            continue;
        if (read_group(folder, "memory.stat", "\nfile ", &files))
            used -= files < used ? files : used;
        uint64_t here = most > used ? most - used : 0;
        left = here < left ? here : left;
    }
    return left;
}

/* UINT64_MAX: unknown. */
static uint64_t memory_left(void)
{
    uint64_t kb, groups = left_in_groups();
    bool known = read_number("/proc/meminfo", "MemAvailable:", &kb);
    return known && kb * 1024 < groups ? kb * 1024 : groups;
}

int memory_fits(const char *name, uint64_t bytes, const char *cure, struct ddp_err *err)
{
    uint64_t left = memory_left();
    if (bytes <= left)
        return 0;
    return err_set(err, "'%s' needs %.1f GB of memory, and %.1f GB are left: %s", name,
                   (double)bytes / 1e9, (double)left / 1e9, cure);
}
