/* launcher/alloc/pbs.c - the allocation of a PBS job (PBS Pro, OpenPBS, Torque)
 *
 * $PBS_NODEFILE has one host per line, once for each of its MPI processes ("mpiprocs" of
 * a chunk, by default 1). Repeats need not be adjacent. If each host is listed once, the
 * job did not set the number of ranks, and ddprun's options may.
 */
#include "common/err.h"
#include "launcher/alloc/sched.h"
#include "launcher/alloc/source.h"

static bool detect(const struct opts *opts)
{
    return sched_env("PBS_NODEFILE") && sched_env("PBS_JOBID");
}

static int read_pbs(const struct opts *opts, struct alloc *a, struct ddp_err *err)
{
    a->scheduler_owned = true;
    TRY(sched_hostfile("PBS_NODEFILE", sched_env("PBS_NODEFILE"), a, err));
    bool once = true;
    for (size_t i = 0; i < a->nnodes; i++)
        once = once && a->nodes[i].slots_else == 1;
    for (size_t i = 0; i < a->nnodes && once; i++)
        a->nodes[i].slots_else = 0;
    return 0;
}

const struct alloc_source alloc_pbs = {
    .name = "pbs",
    .detect = detect,
    .read = read_pbs,
    .job_var = "PBS_JOBID",
    .on_own_node = true,
    .slots_hint = "mpiprocs=N in the job's select",
};
