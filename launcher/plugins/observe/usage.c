/* launcher/plugins/observe/usage.c - see usage.h
 *
 * Descendants are those that /proc/PID/task/PID/children lists: started by the main
 * thread of their parent, as data loaders and shells do. No scan of all processes.
 */
#include "launcher/plugins/observe/usage.h"

#include "common/ancestry.h"
#include "common/mem.h"
#include "common/nvml.h"
#include "common/read_start.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* processes of one rank that are counted */
enum { TREE_MAX = 256 };

/* Adds to `u`; returns the state. */
static char add_process(pid_t pid, struct usage_proc *u)
{
    char text[1024], state = 0;
    unsigned long long user = 0, system = 0;
    long long child_user = 0, child_system = 0, pages = 0;
    const char *fields = ancestry_fields(pid, text, sizeof text);
    if (!fields ||
        sscanf(fields,
               " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu %lld %lld "
               "%*d %*d %*d %*d %*u %*u %lld",
               &state, &user, &system, &child_user, &child_system, &pages) != 6)
        return 0;
    u->cpu_ms += (user + system + (unsigned long long)(child_user + child_system)) *
                 1000 / (unsigned long long)sysconf(_SC_CLK_TCK);
    u->rss_kib += (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE) / 1024;
    return state;
}

void usage_of_tree(pid_t pid, struct usage_proc *u)
{
    pid_t pids[TREE_MAX] = {pid};
    size_t n = 1;
    *u = (struct usage_proc){0};
    for (size_t i = 0; i < n; i++) {
        char path[64], list[4096], *at = list, *end;
        char state = add_process(pids[i], u);
        if (i == 0)
            u->state = state;
        snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)pids[i],
                 (int)pids[i]);
        read_start(path, list, sizeof list);
        for (long child; n < TREE_MAX && (child = strtol(at, &end, 10)) > 0; at = end)
            pids[n++] = (pid_t)child;
    }
}

void usage_of_machine(struct usage_machine *m)
{
    char text[4096];
    unsigned long long t[8] = {0}, total = 0, available = 0;
    read_start("/proc/stat", text, sizeof text);
    sscanf(text, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &t[0], &t[1], &t[2],
           &t[3], &t[4], &t[5], &t[6], &t[7]);
    *m = (struct usage_machine){0};
    for (int i = 0; i < 8; i++)
        m->total += t[i];
    m->busy = m->total - t[3] - t[4]; /* idle, waiting for I/O */
    read_start("/proc/meminfo", text, sizeof text);
    const char *line = strstr(text, "MemAvailable:");
    sscanf(text, "MemTotal: %llu", &total);
    if (line)
        sscanf(line, "MemAvailable: %llu", &available);
    m->total_kib = total;
    m->used_kib = total > available ? total - available : 0;
}

/* --- NVML --------------------------------------------------------------------------- */

size_t usage_of_gpus(struct gpu_use gpus[USAGE_GPUS_MAX])
{
    unsigned n = 0, percent[2];
    unsigned long long bytes[3];
    void *device;
    const struct nvml *nvml = nvml_load();
    if (!nvml || nvml->count(&n) != 0)
        return 0;
    n = n < USAGE_GPUS_MAX ? n : USAGE_GPUS_MAX;
    for (unsigned i = 0; i < n; i++) {
        gpus[i] = (struct gpu_use){0};
        if (nvml->get(i, &device) != 0)
            continue;
        if (nvml->load(device, percent) == 0)
            gpus[i].percent = percent[0];
        if (nvml->memory(device, bytes) == 0) {
            gpus[i].total_mib = (uint32_t)(bytes[0] >> 20);
            gpus[i].used_mib = (uint32_t)(bytes[2] >> 20);
        }
    }
    return n;
}
