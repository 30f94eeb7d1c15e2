/* launcher/place/sysview.h - CPUs, NUMA nodes and GPUs from /sys and /proc
 *
 * Used at every launch; each call reads one or a few small files. `root` is a prefix of
 * the paths: "" on a real machine, a tree of files in tests.
 */
#ifndef LAUNCHER_PLACE_SYSVIEW_H
#define LAUNCHER_PLACE_SYSVIEW_H

#include "common/idset.h"
#include "common/strv.h"

/* The CPUs this process may run on. Never empty. */
void sysview_cpus(struct idset *cpus);

/* The number of online NUMA nodes; 1 when unknown. */
int sysview_numa_nodes(const char *root);

/* The GPUs a CUDA program would see, in its order and notation: `visible` is the value of
 * CUDA_VISIBLE_DEVICES or NULL. Counts the NVIDIA driver's entries in /proc or, where
 * those are hidden (some containers), the device files. */
void sysview_gpus(const char *root, const char *visible, struct strv *gpus);

/* The NUMA node of GPU number `index`; -1: unknown. */
int sysview_gpu_numa(const char *root, int index);

#endif
