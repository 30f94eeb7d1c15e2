/* worker/group/mpi/shim.h - between our library and an MPI library
 *
 * The numbers and structures of Open MPI and of MPICH differ, so that no single program
 * can call both. shim.c is compiled once with each MPI's compiler into a small library of
 * its own, ddpgroup-openmpi.so and ddpgroup-mpich.so, and mpi.c loads the one that the
 * process runs under. Only this table is between them.
 *
 * Calls return 0, or -1 with `why` filled (MPI's own text).
 */
#ifndef WORKER_GROUP_MPI_SHIM_H
#define WORKER_GROUP_MPI_SHIM_H

#include "worker/group/coll.h"

struct shim_op; /* a collective under way */

struct mpi_shim {
    /* MPI_Init, unless it has been called; rank and size of the world. */
    int (*begin)(int *rank, int *size, struct ddp_err *why);
    /* May another thread call than the one that has begun, one at a time? */
    int (*threads)(void);
    /* The `bytes` of each rank of the world, in rank order. */
    int (*gather_world)(const void *mine, void *all, int bytes, struct ddp_err *why);
    /* A communicator of these ranks of the world; only they call. */
    int (*comm_make)(const int *ranks, int n, void **comm, struct ddp_err *why);
    void (*comm_free)(void *comm);
    /* DDP_AVG is summed and not divided. The collective stays where it is until
     * *done = 1, after which `op` is gone. */
    int (*start)(void *comm, const struct coll *c, int rank, int size,
                 struct shim_op **op, struct ddp_err *why);
    int (*test)(struct shim_op *op, int *done, struct ddp_err *why);
    /* Something has failed: do not wait for others at the end of the process. */
    void (*give_up)(void);
};

/* What a shim exports: its table; `reduce` is reduce_two(). */
typedef const struct mpi_shim *(*mpi_shim_fn)(void (*reduce)(void *out, const void *a,
                                                             const void *b, size_t count,
                                                             enum ddp_type type,
                                                             enum ddp_op op),
                                              size_t (*size_of)(enum ddp_type type));

#define MPI_SHIM_NAME "ddpgroup_mpi_shim"

#endif
