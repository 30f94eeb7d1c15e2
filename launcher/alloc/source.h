/* launcher/alloc/source.h - who says where the job may run: files, options, schedulers
 *
 * Which source speaks is found out here, and what it says is made into an allocation.
 */
#ifndef LAUNCHER_ALLOC_SOURCE_H
#define LAUNCHER_ALLOC_SOURCE_H

#include "launcher/alloc/alloc.h"

/* One way of finding out. Rows of the table in source.c; adding a scheduler is one file
 * and one row. */
struct alloc_source {
    const char *name;
    /* Do the options or the environment speak of this source? Cheap. */
    bool (*detect)(const struct opts *opts);
    /* Append nodes. Malformed input: one line with file, line, column, the text and a
     * caret below it. */
    int (*read)(const struct opts *opts, struct alloc *alloc, struct ddp_err *err);
    /* A scheduler's: the variable with the job's number, and the one (NULL: none) with
     * the name of the node on which its job runs. */
    const char *job_var, *node_var;
    /* What its jobs run is started on one of their own nodes: elsewhere its variables
     * have come along from somewhere. */
    bool at_home;
    const char *slots_hint; /* what says how many ranks belong on a node; NULL: host:N */
};

extern const struct alloc_source alloc_hostfile, alloc_hosts_arg, alloc_local;
extern const struct alloc_source alloc_slurm, alloc_sge, alloc_pbs, alloc_lsf;
extern const struct alloc_source alloc_flux, alloc_sagemaker;

/* The source named by --alloc, or the first that detects itself, read, merged (the same
 * host twice adds up) and checked. Returns NULL with `err`; nothing has been started
 * then. */
struct alloc *alloc_read(const struct opts *opts, struct ddp_err *err);

#endif
