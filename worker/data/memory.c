/* worker/data/memory.c - see memory.h */
#include "worker/data/memory.h"

#include "common/err.h"
#include "common/mem.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t available(void)
{
    uint64_t kb;
    char line[128];
    FILE *f = fopen("/proc/meminfo", "re");
    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, "MemAvailable: %" SCNu64, &kb) == 1) {
            fclose(f);
            return kb * 1024;
        }
    }
    if (f)
        fclose(f);
    return UINT64_MAX;
}

/* Reads a file with one number, or the word "max". */
static bool read_number(const char *folder, const char *file, uint64_t *n)
{
    char *path = xasprintf("/sys/fs/cgroup%s/%s", folder, file);
    FILE *f = fopen(path, "re");
    bool found = f && fscanf(f, "%" SCNu64, n) == 1;
    if (f)
        fclose(f);
    free(path);
    return found;
}

/* The least memory left in this control group and its ancestors (version 2). The
 * kernel's count of used memory includes cached files that it would drop; they are
 * subtracted. */
static uint64_t left_in_groups(void)
{
    char folder[512] = "";
    uint64_t left = UINT64_MAX, most, used;
    FILE *f = fopen("/proc/self/cgroup", "re");
    bool found = f && fscanf(f, "0::%511s", folder) == 1;
    if (f)
        fclose(f);
    while (found && *folder) {
        if (read_number(folder, "memory.max", &most) &&
            read_number(folder, "memory.current", &used)) {
            uint64_t files = 0;
            char line[128];
            char *path = xasprintf("/sys/fs/cgroup%s/memory.stat", folder);
            FILE *stat = fopen(path, "re");
            while (stat && fgets(line, sizeof line, stat) &&
                   sscanf(line, "file %" SCNu64, &files) != 1)
                continue;
            if (stat)
                fclose(stat);
            free(path);
            used -= files < used ? files : used;
            uint64_t here = most > used ? most - used : 0;
            left = here < left ? here : left;
        }
        *strrchr(folder, '/') = '\0';
    }
    return left;
}

/* UINT64_MAX: unknown. */
static uint64_t memory_left(void)
{
    uint64_t machine = available(), groups = left_in_groups();
    return machine < groups ? machine : groups;
}

int memory_fits(const char *name, uint64_t bytes, const char *cure, struct ddp_err *err)
{
    uint64_t left = memory_left();
    if (bytes <= left)
        return 0;
    return err_set(err, "'%s' needs %.1f GB of memory, and %.1f GB are left: %s", name,
                   (double)bytes / 1e9, (double)left / 1e9, cure);
}
