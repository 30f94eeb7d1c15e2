/* launcher/alloc/sched.h - helpers for schedulers' sources
 *
 * A scheduler gives hosts, and numbers whose meaning depends on the site: tasks, CPUs,
 * hardware threads. ddprun starts one rank per GPU; a scheduler's number is used for
 * nodes without GPUs.
 */
#ifndef LAUNCHER_ALLOC_SCHED_H
#define LAUNCHER_ALLOC_SCHED_H

#include "common/sanitize.h"
#include "launcher/alloc/alloc.h"
#include "launcher/alloc/hostbook.h"

/* The environment's value, NULL when it is unset or empty. */
const char *sched_env(const char *name);

/* Slurm: was the job submitted with --gpus-per-task? */
bool sched_slurm_gpus_per_task(void);

/* The host on which the job was submitted, a login node; NULL: unknown, or this one. */
const char *sched_submit_host(void);

/* Parse a number >= 1 and move *p behind it. 0: none. */
int sched_number(const char **p);
enum { SCHED_COUNT_MAX = 1 << 20 };

/* Append a node; NULL with `err` if the name is invalid. Valid until the next add. */
struct alloc_node *sched_add(struct alloc *alloc, const char *variable, const char *host,
                             struct ddp_err *err);

/* Slurm's "4(x2),1" into counts[n], which it must cover exactly. `name` is the variable,
 * for messages. */
int sched_counts(const char *name, const char *text, int *counts, size_t n,
                 struct ddp_err *err);

/* "4", "v100:4", "volta:3,kepler:1": the number of GPUs; -1 with `err`. */
int sched_gpus(const char *name, const char *text, struct ddp_err *err);
int sched_devices(const char *list); /* "0,1,4": how many */

/* Read a file with one host per line, repeated per slot (PBS, LSF). */
int sched_hostfile(const char *name, const char *path, struct alloc *alloc,
                   struct ddp_err *err);

/* Read a scheduler's own format, in a variable: `fn` adds the hosts of each line to the
 * hostbook, where slots of a repeated host are added. `line` is place->text, and may be
 * changed. -1 with `err`, which names `name`, also without a host. */
typedef int (*sched_line_fn)(struct hostbook *book, const struct host_place *place,
                             char *line, struct ddp_err *err);
int sched_variable(const char *name, const char *text, sched_line_fn fn,
                   struct alloc *alloc, struct ddp_err *err);
/* The same for the lines of a file, the value of the variable `name`; then sched_count().
 */
int sched_file(const char *name, const char *path, sched_line_fn fn, struct alloc *alloc,
               struct ddp_err *err);

/* Add the next host and its slots of `*words`, the rest of a line for strtok_r(). 1, or 0
 * if there is none. */
int sched_add_pair(struct hostbook *book, const struct host_place *place, char **words,
                   struct ddp_err *err);

/* Let the slots of all nodes count only if they have no GPUs; they come from `name`,
 * which counts them in `unit` ("slot"). */
void sched_count(const char *name, const char *unit, struct alloc *alloc);

#endif
