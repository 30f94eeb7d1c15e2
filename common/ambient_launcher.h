/* common/ambient_launcher.h - the variables by which launchers give a process its rank
 *
 * One table with three users: the group library, which takes its rank from it under any
 * launcher; ddprun, which detects that another launcher has started several instances of
 * it; and --show-env, which prints it. Described in doc/contract.md.
 */
#ifndef COMMON_AMBIENT_LAUNCHER_H
#define COMMON_AMBIENT_LAUNCHER_H

#include "include/ddprun/err.h"

#include <stddef.h>
#include <stdio.h>

struct ambient_launcher {
    const char *name; /* "srun", for display */
    const char *rank, *size;
    const char *local_rank, *local_size; /* among those of one host; size: may be NULL */
    /* The set is ignored without this variable: its other names may be set by something
     * else. NULL: none. */
    const char *needs;
};

/* Innermost first: a launcher that runs inside another one's job (mpirun in a Slurm batch
 * script) has started this process. */
extern const struct ambient_launcher ambient_launchers[];
extern const size_t ambient_launchers_len;

typedef const char *(*ambient_launcher_get)(
    const char *name); /* getenv(), or a test's table */

/* The first complete set, or half a set that no other set completes; NULL: none. */
const struct ambient_launcher *ambient_launcher_find(ambient_launcher_get get);

/* Rank and size of the set, and the local rank (-1: unknown). Half a set, invalid
 * numbers, and a rank beyond the size are errors that name the variable: a guessed rank
 * would form a job of its own. */
int ambient_launcher_place(const struct ambient_launcher *s, ambient_launcher_get get,
                           int *rank, int *size, int *local_rank, struct ddp_err *err);

/* What this process is in its job. */
struct ambient_rank {
    const char *launcher; /* borrowed from the table; NULL: none, rank 0 of 1 */
    int rank, size;
    int local_rank; /* -1: unknown */
};
/* -1 also for a process of pbsdsh: it does not know how many there are. */
int ambient_launcher_rank(struct ambient_rank *self, ambient_launcher_get get,
                          struct ddp_err *err);
const char *ambient_launcher_env(const char *name); /* getenv() */

/* Processes of PBS's task manager (pbsdsh) have a task number, the job script being the
 * first, but no variable with their count. Returns PBS_TASKNUM, or NULL if this is not
 * such a process. */
const char *ambient_launcher_pbs_task(ambient_launcher_get get);

/* Print the table, one row per line. */
void ambient_launcher_print(FILE *out);

#endif
