/* launcher/agent/mpi_kind.h - which MPI a program was linked to, when that can be seen
 *
 * An MPI program that does not find its launcher does not fail: each rank is a world of
 * one. What can be seen before it starts is therefore looked at: the libraries its file
 * names. A script's MPI cannot be seen, nor that of a library of a library.
 */
#ifndef LAUNCHER_AGENT_MPI_KIND_H
#define LAUNCHER_AGENT_MPI_KIND_H

#include "launcher/link/message.h"

enum mpi_kind {
    MPI_UNSEEN,
    MPI_WANTS_PMIX,
    MPI_WANTS_PMI,
    MPI_TOO_OLD /* Open MPI before 3: what it speaks is spoken by its own mpirun only */
};

/* `library_path`: the ranks' LD_LIBRARY_PATH, or NULL. `library` gets the name that told,
 * "libmpi.so.20", "" when none did. */
enum mpi_kind mpi_kind_of(const char *path, const char *library_path, char *library,
                          size_t size);

/* Would the job's ranks be alone, with what is served (enum mpi_serve)? -1 with a line.
 */
int mpi_kind_check(enum mpi_kind kind, const char *program, const char *library,
                   unsigned served, uint32_t nranks, struct ddp_err *err);

#endif
