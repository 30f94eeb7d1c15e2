/* worker/data/memory.c - see memory.h */
#include "worker/data/memory.h"

#include "common/cgroup.h"
#include "common/err.h"
#include "common/read_start.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* UINT64_MAX: unknown. */
static uint64_t memory_left(void)
{
    static const char name[] = "MemAvailable:";
    char text[4096];
    uint64_t kb, left = cgroup_memory_left("");
    const char *at =
        read_start("/proc/meminfo", text, sizeof text) > 0 ? strstr(text, name) : NULL;
    if (at && sscanf(at + strlen(name), "%" SCNu64, &kb) == 1 && kb < left / 1024)
        left = kb * 1024;
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
