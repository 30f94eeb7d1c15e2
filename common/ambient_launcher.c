/* common/ambient_launcher.c - see ambient_launcher.h */
#include "common/ambient_launcher.h"

#include "common/err.h"
#include "common/mem.h"
#include "common/number.h"

#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

const struct ambient_launcher ambient_launchers[] = {
    {"ddprun or torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", NULL},
    {"mpirun (Open MPI)", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_SIZE"},
    {"jsrun", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK",
     "JSM_NAMESPACE_LOCAL_SIZE", "JSM_NAMESPACE_SIZE"},
    {"mpirun_rsh (MVAPICH)", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE",
     "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_SIZE"},
    {"mpiexec (Hydra)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS",
     "MPI_LOCALRANKID"},
    {"mpiexec (PALS)", "PALS_RANKID", "PALS_SIZE", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE",
     "PALS_SIZE"},
    {"flux run", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", NULL,
     "FLUX_TASK_RANK"},
    /* a batch script has SLURM_PROCID=0 and the job's SLURM_NTASKS but is not a task;
     * only srun's tasks have SLURM_STEP_NUM_TASKS */
    {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", NULL,
     "SLURM_STEP_NUM_TASKS"},
    /* any other PMI launcher: no local rank */
    {"a PMI launcher", "PMI_RANK", "PMI_SIZE", NULL, NULL, "PMI_SIZE"},
};
const size_t ambient_launchers_len = ARRAY_LEN(ambient_launchers);

/* A script that exports only WORLD_SIZE (or RANK=0) gives half a set; a later complete
 * set is used, unless it contradicts. */
static bool agrees(const struct ambient_launcher *half,
                   const struct ambient_launcher *whole, ambient_launcher_get get)
{
    const char *size = get(half->size);
    return !size || strcmp(size, get(whole->size)) == 0;
}

const struct ambient_launcher *ambient_launcher_find(ambient_launcher_get get)
{
    const struct ambient_launcher *half = NULL;
    for (size_t i = 0; i < ARRAY_LEN(ambient_launchers); i++) {
        const struct ambient_launcher *s = &ambient_launchers[i];
        if (s->needs && !get(s->needs))
            continue;
        if (get(s->rank) && get(s->size))
            return half && !agrees(half, s, get) ? half : s;
        if ((get(s->rank) || get(s->size)) && !half)
            half = s;
    }
    return half;
}

static int number(const char *name, const char *text, int min, int *value,
                  struct ddp_err *err)
{
    return number_whole(text, min, INT_MAX, value)
               ? 0
               : err_set(err, "%s is '%s': not a number of %d or more", name, text, min);
}

int ambient_launcher_place(const struct ambient_launcher *s, ambient_launcher_get get,
                           int *rank, int *size, int *local_rank, struct ddp_err *err)
{
    const char *r = get(s->rank), *n = get(s->size);
    const char *local = s->local_rank ? get(s->local_rank) : NULL;
    *local_rank = -1;
    if (!r || !n)
        return err_set(err, "%s is set but %s is not: set both or neither",
                       r ? s->rank : s->size, r ? s->size : s->rank);
    if (number(s->rank, r, 0, rank, err) < 0 || number(s->size, n, 1, size, err) < 0 ||
        (local && number(s->local_rank, local, 0, local_rank, err) < 0))
        return -1;
    if (*rank >= *size)
        return err_set(err, "%s is %d, but %s is only %d", s->rank, *rank, s->size,
                       *size);
    return 0;
}

const char *ambient_launcher_pbs_task(ambient_launcher_get get)
{
    const char *task = get("PBS_JOBID") ? get("PBS_TASKNUM") : NULL;
    return task && *task && strtol(task, NULL, 16) != 1 ? task : NULL;
}

int ambient_launcher_rank(struct ambient_rank *self, ambient_launcher_get get,
                          struct ddp_err *err)
{
    const struct ambient_launcher *s = ambient_launcher_find(get);
    const char *task = s ? NULL : ambient_launcher_pbs_task(get);
    *self = (struct ambient_rank){.size = 1, .local_rank = -1};
    if (task)
        return err_set(
            err,
            "PBS_TASKNUM=%s: one of the tasks that pbsdsh has started, and it "
            "does not say how many they are; start them by ddprun, or set RANK=0 "
            "and WORLD_SIZE=1 if it is the only one",
            task);
    self->launcher = s ? s->name : NULL;
    return s ? ambient_launcher_place(s, get, &self->rank, &self->size, &self->local_rank,
                                      err)
             : 0;
}

const char *ambient_launcher_env(const char *name)
{
    return getenv(name);
}

void ambient_launcher_print(FILE *out)
{
    for (size_t i = 0; i < ARRAY_LEN(ambient_launchers); i++) {
        const struct ambient_launcher *s = &ambient_launchers[i];
        fprintf(out, "  %-22s %s, %s%s%s%s%s\n", s->name, s->rank, s->size,
                s->local_rank ? ", " : "", s->local_rank ? s->local_rank : "",
                s->local_size ? ", " : "", s->local_size ? s->local_size : "");
    }
}
