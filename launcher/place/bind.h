/* launcher/place/bind.h - the CPUs and the GPU of each rank of one node
 *
 * Computed on the node itself, by its agent (and by the launcher for --dry-run of this
 * machine), because only the node knows its CPUs. Restricted to what this process may
 * use: its affinity mask, its cgroup's CPU quota, CUDA_VISIBLE_DEVICES.
 *
 * BIND_AUTO binds nothing on a machine with one NUMA node and no GPU; this
 * takes three small files in /sys and microseconds. Everything else runs ddprun-topo
 * (topo.h), the only program that loads hwloc.
 */
#ifndef LAUNCHER_PLACE_BIND_H
#define LAUNCHER_PLACE_BIND_H

#include "include/ddprun/err.h"
#include "launcher/opts.h"

#include <sched.h>

struct binding {
    cpu_set_t *cpus;  /* owned (CPU_FREE): for sched_setaffinity, NULL: not bound */
    size_t cpus_size; /* bytes of *cpus */
    char *cpus_text;  /* owned: "0-7,16", NULL: not bound */
    int ncpus;        /* >= 1: CPUs this rank may count as its own (OMP_NUM_THREADS) */
    int numa;         /* NUMA node of all its CPUs, -1: several, or unknown */
    int gpu;          /* index among the visible GPUs (LOCAL_RANK % count), -1: none */
    char *gpu_text;   /* owned: with BIND_ONE_GPU the value of CUDA_VISIBLE_DEVICES ("3",
                         "GPU-..."). NULL: the variable is not changed, all GPUs stay
                         visible and the script picks one by LOCAL_RANK */
};

/* Fill out[0..nlocal-1], by local rank; binding_finish() afterwards, also on failure.
 * Fails when `policy` is impossible here (more ranks than cores, no ddprun-topo);
 * BIND_AUTO never fails. */
int bind_node(enum bind_to policy, int nlocal, struct binding *out, struct ddp_err *err);
void binding_finish(struct binding *b, int nlocal);

/* The number of GPUs a program started here would see: those of the NVIDIA driver without
 * those hidden by CUDA_VISIBLE_DEVICES. No CUDA call, opens no device: microseconds. */
int topo_gpus(void);

#endif
