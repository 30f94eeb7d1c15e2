/* launcher/plugins/observe/usage.h - what processes, machine and GPUs use, from /proc and
 * NVML */
#ifndef LAUNCHER_PLUGINS_OBSERVE_USAGE_H
#define LAUNCHER_PLUGINS_OBSERVE_USAGE_H

#include "launcher/link/message.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* A process with its descendants. */
struct usage_proc {
    char state;       /* of the process itself, as in /proc/PID/stat; 0: it has ended */
    uint64_t cpu_ms;  /* with children that it has waited for */
    uint64_t rss_kib; /* shared pages count for each process */
};
void usage_of_tree(pid_t pid, struct usage_proc *u);

struct usage_machine {
    uint64_t busy, total; /* of all CPUs since boot, in clock ticks */
    uint64_t used_kib, total_kib;
};
void usage_of_machine(struct usage_machine *m);

enum { USAGE_GPUS_MAX = 32 };
/* Of all GPUs that NVML shows, into `gpus`, and their number; 0 without its library.
 * Blocks, at the first call for a second, and without limit on a broken GPU: call it in a
 * thread (common/offload.h), not in two at a time. */
size_t usage_of_gpus(struct gpu_use gpus[USAGE_GPUS_MAX]);

#endif
