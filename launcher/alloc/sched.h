/* launcher/alloc/sched.h - what the schedulers' sources share
 *
 * A scheduler gives hosts, and numbers that mean other things from site to site: tasks,
 * CPUs, hardware threads. What we start is one rank per GPU; a scheduler's number counts
 * where a node has none.
 */
#ifndef LAUNCHER_ALLOC_SCHED_H
#define LAUNCHER_ALLOC_SCHED_H

#include "common/sanitize.h"
#include "launcher/alloc/alloc.h"

/* The environment's value, NULL when it is unset or empty. */
const char *sched_env(const char *name);

/* A number from 1; moves *p behind it. 0: there is none. */
int sched_number(const char **p);
enum { SCHED_COUNT_MAX = 1 << 20 };

/* Can a host be called so, as `variable` has it? */
int sched_host_name(const char *variable, const char *host, struct ddp_err *err);

/* A node of that name; NULL with `err` when no host is called so. Valid until the next
 * one is added. */
struct alloc_node *sched_add(struct alloc *alloc, const char *variable, const char *host,
                             struct ddp_err *err);

/* Slurm's "4(x2),1" into counts[n], which it must cover exactly. `name` is the variable,
 * for the complaint. */
int sched_counts(const char *name, const char *text, int *counts, size_t n,
                 struct ddp_err *err);

/* "4", "v100:4", "volta:3,kepler:1": how many GPUs; -1 with `err`. */
int sched_gpus(const char *name, const char *text, struct ddp_err *err);

/* The node has this many slots, and whoever is asked why is told `from` (a copy). */
void sched_slots(struct alloc_node *node, int slots, const char *from);
/* The same, for nodes without GPUs only: alloc_resolve() decides. */
void sched_slots_else(struct alloc_node *node, int slots, const char *from);

/* A file with a host a line, repeated once per slot (PBS, LSF, Slurm's arbitrary order).
 */
int sched_hostfile(const char *name, const char *path, struct alloc *alloc,
                   struct ddp_err *err);

#endif
