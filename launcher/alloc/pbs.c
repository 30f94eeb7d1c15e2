/* launcher/alloc/pbs.c - the allocation of a PBS job (PBS Pro, OpenPBS, Torque)
 *
 * $PBS_NODEFILE has a host a line, once for each of its MPI processes ("mpiprocs" of a
 * chunk, which is 1 unless it is asked for). Repeats need not stand together. A file that
 * has each host once is that of a job whose user has not spoken of ranks, and is free to
 * do so now.
 */
#include "launcher/alloc/sched.h"
#include "launcher/alloc/source.h"

static bool detect(const struct opts *opts)
{
    return sched_env("PBS_NODEFILE") && sched_env("PBS_JOBID");
}

static int read_pbs(const struct opts *opts, struct alloc *a, struct ddp_err *err)
{
    a->scheduler_owned = true;
    if (sched_hostfile("PBS_NODEFILE", sched_env("PBS_NODEFILE"), a, err) < 0)
        return -1;
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
    .at_home = true,
    .slots_hint = "mpiprocs=N in the job's select",
};
