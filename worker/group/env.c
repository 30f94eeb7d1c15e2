/* worker/group/env.c - see env.h
 *
 * The order is from the inside out: a launcher that runs inside another one's job (mpirun
 * in a Slurm batch script, ddprun under either) is the one that made this process.
 */
#include "worker/group/env.h"

#include "common/err.h"
#include "common/mem.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>

struct family {
    const char *launcher;
    const char *rank, *size, *local_rank;
    const char *unless; /* with this variable absent the set does not count; or NULL */
};

static const struct family families[] = {
    {"ddprun or torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", NULL},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"},
    {"Hydra or PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "PMI_SIZE"},
    {"Cray PALS", "PALS_RANKID", "PALS_SIZE", "PALS_LOCAL_RANKID", "PALS_SIZE"},
    {"Flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", NULL},
    /* a batch script's shell has SLURM_PROCID=0 and the job's SLURM_NTASKS without being
     * one of the tasks; only those of srun have SLURM_STEP_NUM_TASKS */
    {"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID",
     "SLURM_STEP_NUM_TASKS"},
};

const char *env_get(const char *name)
{
    return getenv(name);
}

static int number(const char *name, const char *text, int min, int *value,
                  struct ddp_err *err)
{
    char *end;
    errno = 0;
    long n = strtol(text, &end, 10);
    if (end == text || *end || errno || n < min || n > INT_MAX)
        return err_set(err, "%s is '%s': not a number of %d or more", name, text, min);
    *value = (int)n;
    return 0;
}

static int read_family(const struct family *f, struct env_place *place,
                       const char *(*get)(const char *name), struct ddp_err *err)
{
    const char *rank = get(f->rank), *size = get(f->size);
    if (!rank || !size)
        return err_set(err, "%s is set but %s is not: set both or neither",
                       rank ? f->rank : f->size, rank ? f->size : f->rank);
    if (number(f->rank, rank, 0, &place->rank, err) < 0 ||
        number(f->size, size, 1, &place->size, err) < 0)
        return -1;
    if (place->rank >= place->size)
        return err_set(err, "%s is %d, but %s is only %d", f->rank, place->rank, f->size,
                       place->size);
    const char *local = get(f->local_rank);
    if (local && number(f->local_rank, local, 0, &place->local_rank, err) < 0)
        return -1;
    place->launcher = f->launcher;
    return 0;
}

int env_place(struct env_place *place, const char *(*get)(const char *name),
              struct ddp_err *err)
{
    *place = (struct env_place){.size = 1, .local_rank = -1};
    for (size_t i = 0; i < ARRAY_LEN(families); i++) {
        const struct family *f = &families[i];
        if (f->unless && !get(f->unless))
            continue;
        if (get(f->rank) || get(f->size))
            return read_family(f, place, get, err);
    }
    return 0;
}
