/* worker/group/mpi/mpi.h - groups whose collectives are MPI's (backend.h) */
#ifndef WORKER_GROUP_MPI_MPI_H
#define WORKER_GROUP_MPI_MPI_H

#include "worker/group/bootstrap.h"

/* Load the shim for the MPI that this process runs under, and call MPI_Init. */
int mpi_begin(int *rank, int *size, struct ddp_err *err);
/* A bootstrap_fn; after mpi_begin(). */
int bootstrap_mpi(const struct bootstrap *m, const char *card, struct ddp_value *cards,
                  struct ddp_err *err);

#endif
