/* worker/group/env.h - rank and size from the launcher's environment variables
 *
 * The table is common/ambient_launcher.h's. A launcher's variables are used as a set:
 * rank and size come from the same launcher. An incomplete set is an error that names the
 * missing variable, since a rank that guesses becomes a group of its own.
 */
#ifndef WORKER_GROUP_ENV_H
#define WORKER_GROUP_ENV_H

#include "include/ddprun/err.h"

#include <stdbool.h>

struct env_place {
    const char *launcher; /* "ddprun or torchrun", "srun", ...; NULL: none, rank 0 of 1 */
    int rank, size;
    int local_rank; /* -1: not said */
};

/* `get` is getenv, or a test's table. */
int env_place(struct env_place *place, const char *(*get)(const char *name),
              struct ddp_err *err);

/* Does the launcher run no store and leave it to rank 0, as PyTorch's programs do under
 * srun and mpirun? */
bool env_makes_no_store(const char *(*get)(const char *name));

/* The process environment, as a `get`. */
const char *env_get(const char *name);

#endif
