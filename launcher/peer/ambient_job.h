/* launcher/peer/ambient_job.h - detect that another launcher has started several ddprun
 *
 * srun, mpirun and similar launchers start one instance per node or per rank; with
 * --node-rank the user starts one per node; SageMaker runs the same command in every
 * container. struct ambient_job is what the instances know of each other; peer.h acts on
 * it.
 */
#ifndef LAUNCHER_PEER_AMBIENT_JOB_H
#define LAUNCHER_PEER_AMBIENT_JOB_H

#include "common/strv.h"
#include "include/ddprun/err.h"
#include "launcher/opts.h"

#include <stdbool.h>

struct ambient_job {
    const char *by; /* "srun"; "--node-rank": by hand; NULL: this is the only instance */
    const char *size_var;       /* the variable with the size: "SLURM_STEP_NUM_TASKS" */
    int rank, size;             /* of this instance among all */
    int least;                  /* instances that the job needs: --nnodes MIN:MAX */
    int local_rank, local_size; /* among those of this machine */
    bool by_hand;
    bool apart; /* no shared home directory and no shared secret */
    /* owned: common to all instances of this start, and different from any other start;
     * "" under Hydra, where PMI gives it (peer.c) */
    char *id;
    const char *secret; /* borrowed: a secret that only the instances know; NULL: none */
    const char *node;   /* borrowed: the launcher's name of this node, where it can have
                           several nodes on one machine; NULL: none */
    struct strv hosts;  /* host names by rank, if each has one instance and the names are
                           known; else empty */
};

/* Returns 0 with `o` filled (o->by NULL: the only instance), -1 with `err` when the
 * variables are inconsistent or each instance would become a job of its own. */
int ambient_job_find(const struct opts *opts, struct ambient_job *o, struct ddp_err *err);
void ambient_job_finish(struct ambient_job *o);

#endif
