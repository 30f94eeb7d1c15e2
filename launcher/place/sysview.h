/* launcher/place/sysview.h - what /sys, /proc and the kernel say at once
 *
 * The questions a launch asks every time, answered by one small file each. `root` is put
 * in front of the paths: "" on a real machine, a tree of files in tests.
 */
#ifndef LAUNCHER_PLACE_SYSVIEW_H
#define LAUNCHER_PLACE_SYSVIEW_H

#include "common/idset.h"
#include "common/strv.h"

/* The CPUs this process may run on. Never empty. */
void sysview_cpus(struct idset *cpus);

/* The cgroup's CPU quota (version 2, all levels) in whole CPUs, rounded up; 0: none. */
int sysview_quota(const char *root);

/* NUMA nodes that are online; 1 when the kernel does not say. */
int sysview_numa_nodes(const char *root);

/* The GPUs a CUDA program would see, in its order and words: `visible` is the value of
 * CUDA_VISIBLE_DEVICES or NULL. Counted are the NVIDIA driver's own entries; where the
 * driver's directory is hidden (some containers), the device files. */
void sysview_gpus(const char *root, const char *visible, struct strv *gpus);

/* The NUMA node that GPU number `index` hangs on, -1: not known. */
int sysview_gpu_numa(const char *root, int index);

#endif
