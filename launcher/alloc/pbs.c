/* launcher/alloc/pbs.c - the allocation of a PBS job (PBS Pro, OpenPBS, Torque)
 *
 * $PBS_NODEFILE has a host a line, once for each of its MPI processes ("mpiprocs" of a
 * chunk, which is 1 unless it is asked for). Repeats need not stand together.
 */
#include "launcher/alloc/sched.h"

static bool detect(const struct opts *opts)
{
    return sched_env("PBS_NODEFILE") && sched_env("PBS_JOBID");
}

static int read_pbs(const struct opts *opts, struct alloc *a, struct ddp_err *err)
{
    a->scheduler_owned = true;
    return sched_hostfile("PBS_NODEFILE", sched_env("PBS_NODEFILE"), a, err);
}

const struct alloc_source alloc_pbs = {"pbs", detect, read_pbs, "PBS_JOBID", NULL, true};
