/* common/ambient_launcher.h - the variables by which launchers tell a process its rank
 *
 * One table for whoever asks: the group library, which takes its rank from it under any
 * launcher; ddprun, which learns from it that something else has started several copies
 * of it; and --show-env, which prints it. doc/contract.md has it in words.
 */
#ifndef COMMON_AMBIENT_LAUNCHER_H
#define COMMON_AMBIENT_LAUNCHER_H

#include "include/ddprun/err.h"

#include <stddef.h>

struct ambient_launcher {
    const char *name; /* "srun", for people */
    const char *rank, *size;
    const char *local_rank, *local_size; /* among those of one host; size: may be NULL */
    /* Without this variable the set does not count: somebody else has set some of its
     * names. NULL: none. */
    const char *needs;
};

/* From the inside out: a launcher that runs inside another one's job (mpirun in a Slurm
 * batch script) is the one that made this process. */
extern const struct ambient_launcher ambient_launchers[];
extern const size_t ambient_launchers_len;

typedef const char *(*ambient_launcher_get)(
    const char *name); /* getenv(), or a test's table */

/* The first set that is there whole, or half of one where no other says the rest; NULL:
 * none. */
const struct ambient_launcher *ambient_launcher_find(ambient_launcher_get get);

/* Rank and size of the set, and the local rank (-1: not said). Half a set, numbers that
 * are none, and a rank beyond the size are errors that name the variable: a rank that
 * guesses becomes a world of its own. */
int ambient_launcher_place(const struct ambient_launcher *s, ambient_launcher_get get,
                           int *rank, int *size, int *local_rank, struct ddp_err *err);

/* What PBS's task manager starts (pbsdsh) has the number of its task, the job's script
 * being the first, but nothing says how many it has started. That number as it stands in
 * PBS_TASKNUM, or NULL: this is no such process. */
const char *ambient_launcher_pbs_task(ambient_launcher_get get);

/* The table, a row a line. */
void ambient_launcher_print(void (*line)(const char *text, void *arg), void *arg);

#endif
