/* launcher/alloc/source.h - sources of the allocation: files, options, schedulers
 *
 * Detects the source to use and reads it into an allocation.
 */
#ifndef LAUNCHER_ALLOC_SOURCE_H
#define LAUNCHER_ALLOC_SOURCE_H

#include "launcher/alloc/alloc.h"

/* A row of the table in source.c; adding a scheduler is one file and one row. */
struct alloc_source {
    const char *name;
    /* Do the options or the environment indicate this source? Cheap. */
    bool (*detect)(const struct opts *opts);
    /* Append nodes. Malformed input: one line with file, line, column, the text and a
     * caret below it. */
    int (*read)(const struct opts *opts, struct alloc *alloc, struct ddp_err *err);
    /* A scheduler's: the variable with the job id, and the one (NULL: none) with the name
     * of the node on which the process runs. */
    const char *job_var, *node_var;
    /* Its jobs' scripts run on one of the job's nodes: on another machine its variables
     * were inherited by mistake. */
    bool on_own_node;
    const char *old_job_var; /* the name of job_var in old versions, or NULL */
    const char *slots_hint;  /* the option that sets the ranks per node; NULL: host:N */
    const char *loss_hint;   /* why it may end a job that has lost a node; NULL: none */
};

extern const struct alloc_source alloc_discovery; /* --host-discovery-script */
extern const struct alloc_source alloc_hostfile, alloc_hosts_arg, alloc_local;
extern const struct alloc_source alloc_mpi_hostfile; /* the MPI launchers' variables */
extern const struct alloc_source alloc_slurm, alloc_sge, alloc_pbs, alloc_lsf;
extern const struct alloc_source alloc_flux, alloc_sagemaker;

/* Read, merge (slots of repeated hosts are added) and check the source named by --alloc,
 * or the first that detects itself. NULL with `err`. */
struct alloc *alloc_read(const struct opts *opts, struct ddp_err *err);

#endif
