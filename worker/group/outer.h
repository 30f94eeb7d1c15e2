/* worker/group/outer.h - what the launcher around us can carry from rank 0 to all
 *
 * mpirun, Hydra, Flux and srun with --mpi offer their ranks a small exchange of texts:
 * PMIx, or PMI-1 on the descriptor PMI_FD. Both are made for MPI, which may use them in
 * the same process before and after us: we leave as late as the process does.
 */
#ifndef WORKER_GROUP_OUTER_H
#define WORKER_GROUP_OUTER_H

#include "include/ddprun/err.h"

#include <stdint.h>

enum { OUTER_VALUE = 256 }; /* room for a text, with its NUL */

/* One way of exchange. */
struct outer {
    const char *name;
    const char *sign; /* the variable that says that it is there */
    /* All ranks of the job call it with the same key (letters, digits and '-'): the value
     * that rank 0 comes with is what all leave with. */
    int (*share)(const char *key, int rank, int size, char value[OUTER_VALUE],
                 int64_t deadline_ms, struct ddp_err *err);
};

/* The one that this process was started with; NULL: none. */
const struct outer *outer_find(void);

int outer_share_pmi(const char *key, int rank, int size, char value[OUTER_VALUE],
                    int64_t deadline_ms, struct ddp_err *err);
int outer_share_pmix(const char *key, int rank, int size, char value[OUTER_VALUE],
                     int64_t deadline_ms, struct ddp_err *err);

#endif
