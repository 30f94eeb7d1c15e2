/* Which rank am I: by the variables of each launcher. */
#include "tests/support/suite.h"

#include "common/ambient_launcher.h"
#include "common/mem.h"

#include <string.h>

static const struct {
    const char *vars[12]; /* name, value, ... */
    const char *launcher; /* NULL: none */
    int rank, size, local_rank;
    const char *error; /* NULL: fine */
} cases[] = {
    {{NULL}, NULL, 0, 1, -1, NULL},
    {{"RANK", "3", "WORLD_SIZE", "4", "LOCAL_RANK", "1"},
     "ddprun or torchrun",
     3,
     4,
     1,
     NULL},
    /* the inner launcher wins */
    {{"RANK", "1", "WORLD_SIZE", "2", "OMPI_COMM_WORLD_RANK", "5", "OMPI_COMM_WORLD_SIZE",
      "8"},
     "ddprun or torchrun",
     1,
     2,
     -1,
     NULL},
    {{"OMPI_COMM_WORLD_RANK", "5", "OMPI_COMM_WORLD_SIZE", "8",
      "OMPI_COMM_WORLD_LOCAL_RANK", "2", "SLURM_PROCID", "0"},
     "mpirun (Open MPI)",
     5,
     8,
     2,
     NULL},
    {{"PMI_RANK", "1", "PMI_SIZE", "2", "MPI_LOCALRANKID", "1"},
     "mpiexec (Hydra)",
     1,
     2,
     1,
     NULL},
    {{"SLURM_PROCID", "6", "SLURM_STEP_NUM_TASKS", "8", "SLURM_LOCALID", "2",
      "SLURM_NTASKS", "16"},
     "srun",
     6,
     8,
     2,
     NULL},
    /* the shell of a batch script is no task of a step */
    {{"SLURM_PROCID", "0", "SLURM_NTASKS", "8"}, NULL, 0, 1, -1, NULL},
    {{"FLUX_TASK_RANK", "1", "FLUX_JOB_SIZE", "3"}, "flux run", 1, 3, -1, NULL},
    {{"PALS_RANKID", "1", "PALS_SIZE", "3"}, "mpiexec (PALS)", 1, 3, -1, NULL},
    {{"PMI_RANK", "1", "PMI_SIZE", "2", "SLURM_PROCID", "1", "SLURM_STEP_NUM_TASKS", "2",
      "SLURM_LOCALID", "0"},
     "srun", /* --mpi=pmi2 */
     1,
     2,
     0,
     NULL},
    {{"PMI_RANK", "1", "PMI_SIZE", "2"}, "a PMI launcher", 1, 2, -1, NULL},
    {{"JSM_NAMESPACE_RANK", "1", "JSM_NAMESPACE_SIZE", "2", "JSM_NAMESPACE_LOCAL_RANK",
      "1"},
     "jsrun",
     1,
     2,
     1,
     NULL},
    {{"MV2_COMM_WORLD_RANK", "1", "MV2_COMM_WORLD_SIZE", "2"},
     "mpirun_rsh (MVAPICH)",
     1,
     2,
     -1,
     NULL},
    /* what a script exports is half of it, and srun says the rest */
    {{"WORLD_SIZE", "8", "SLURM_PROCID", "6", "SLURM_STEP_NUM_TASKS", "8"},
     "srun",
     6,
     8,
     -1,
     NULL},
    {{"WORLD_SIZE", "9", "SLURM_PROCID", "6", "SLURM_STEP_NUM_TASKS", "8"},
     NULL,
     0,
     0,
     0,
     "WORLD_SIZE is set but RANK is not: set both or neither"},
    {{"RANK", "1"},
     NULL,
     0,
     0,
     0,
     "RANK is set but WORLD_SIZE is not: set both or neither"},
    {{"WORLD_SIZE", "2"},
     NULL,
     0,
     0,
     0,
     "WORLD_SIZE is set but RANK is not: set both or neither"},
    {{"RANK", "2", "WORLD_SIZE", "2"},
     NULL,
     0,
     0,
     0,
     "RANK is 2, but WORLD_SIZE is only 2"},
    {{"RANK", "x", "WORLD_SIZE", "2"},
     NULL,
     0,
     0,
     0,
     "RANK is 'x': not a number of 0 or more"},
    {{"RANK", "-1", "WORLD_SIZE", "2"},
     NULL,
     0,
     0,
     0,
     "RANK is '-1': not a number of 0 or more"},
    {{"RANK", "0", "WORLD_SIZE", "0"},
     NULL,
     0,
     0,
     0,
     "WORLD_SIZE is '0': not a number of 1 or more"},
    {{"RANK", "0", "WORLD_SIZE", "99999999999"},
     NULL,
     0,
     0,
     0,
     "WORLD_SIZE is '99999999999': not a number of 1 or more"},
    {{"RANK", "0", "WORLD_SIZE", "2", "LOCAL_RANK", "1x"},
     NULL,
     0,
     0,
     0,
     "LOCAL_RANK is '1x': not a number of 0 or more"},
    /* the script of a PBS job, and what pbsdsh starts in it */
    {{"PBS_JOBID", "7.head", "PBS_TASKNUM", "1"}, NULL, 0, 1, -1, NULL},
    {{"PBS_JOBID", "7.head", "PBS_TASKNUM", "20000001"},
     NULL,
     0,
     0,
     0,
     "PBS_TASKNUM=20000001: one of the tasks that pbsdsh has started, and it does not say "
     "how many they are; start them by ddprun, or set RANK=0 and WORLD_SIZE=1 if it is the "
     "only one"},
};

static int at;

static const char *get(const char *name)
{
    for (size_t i = 0; i + 1 < ARRAY_LEN(cases[0].vars) && cases[at].vars[i]; i += 2) {
        if (strcmp(cases[at].vars[i], name) == 0)
            return cases[at].vars[i + 1];
    }
    return NULL;
}

LOOP_TEST(rank_and_size_come_from_one_launcher, ARRAY_LEN(cases))
{
    struct ddp_err err = {""};
    struct ambient_rank p;
    at = _i;
    int rc = ambient_launcher_rank(&p, get, &err);
    if (cases[_i].error) {
        ck_assert_int_eq(rc, -1);
        ck_assert_str_eq(err.text, cases[_i].error);
        return;
    }
    ck_ok(rc, err);
    ck_assert_pstr_eq(p.launcher, cases[_i].launcher);
    ck_assert_int_eq(p.rank, cases[_i].rank);
    ck_assert_int_eq(p.size, cases[_i].size);
    ck_assert_int_eq(p.local_rank, cases[_i].local_rank);
}
