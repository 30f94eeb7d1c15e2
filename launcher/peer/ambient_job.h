/* launcher/peer/ambient_job.h - has something else started several copies of ddprun?
 *
 * srun, mpirun and their like start one copy per node or per rank; by hand it is one per
 * node, with --node-rank; SageMaker runs the same command in every container. What the
 * copies have to know of each other is gathered here into one value; what they then do
 * is peer.h's.
 */
#ifndef LAUNCHER_PEER_AMBIENT_JOB_H
#define LAUNCHER_PEER_AMBIENT_JOB_H

#include "common/ambient_launcher.h"
#include "common/strv.h"
#include "launcher/opts.h"

#include <stdbool.h>

struct ambient_job {
    const char *by;       /* "srun"; "--node-rank": by hand; NULL: nobody, we are alone */
    const char *size_var; /* that says how many: "SLURM_STEP_NUM_TASKS" */
    int rank, size;       /* of this copy among all */
    int local_rank, local_size; /* among those of this machine */
    bool by_hand;
    bool apart; /* each has a home of its own: nothing secret is shared */
    /* what all copies have in common, and no other start has: owned; "" under Hydra,
     * which tells it over its own wire (pmi.h) */
    char *id;
    const char *secret; /* borrowed: what only the copies know; NULL: nothing */
    const char *node;  /* borrowed: what a starter with several nodes on one machine calls
                          the one of this copy; NULL: it has none */
    struct strv hosts; /* their machines by rank, where one copy each is known; else
                          empty */
};

/* Returns 0 with `o` filled (o->by NULL: alone), -1 with the line when this start would
 * become several worlds, or is told wrongly. `get` is getenv(), or a test's table. */
int ambient_job_find(const struct opts *opts, ambient_launcher_get get,
                     struct ambient_job *o, struct ddp_err *err);
void ambient_job_finish(struct ambient_job *o);

#endif
