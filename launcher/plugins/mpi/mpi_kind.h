/* launcher/plugins/mpi/mpi_kind.h - detect which MPI a program is linked to
 *
 * An MPI program that does not find its launcher does not fail: each rank becomes a world
 * of size one. So its DT_NEEDED libraries are checked before it starts. Not detected: the
 * MPI of a script, and one needed only by another library.
 */
#ifndef LAUNCHER_PLUGINS_MPI_MPI_KIND_H
#define LAUNCHER_PLUGINS_MPI_MPI_KIND_H

#include "common/elf_file.h"
#include "launcher/link/message.h"

enum mpi_kind {
    MPI_UNSEEN,
    MPI_WANTS_PMIX,
    MPI_WANTS_PMI,
    MPI_TOO_OLD /* Open MPI before 3: its protocol works only with its own mpirun */
};

/* `elf` is of `path`. `library_path`: the ranks' LD_LIBRARY_PATH, or NULL. `library` gets
 * the name of the deciding library, "libmpi.so.20", or "". */
enum mpi_kind mpi_kind_of(const char *path, const struct elf *elf,
                          const char *library_path, char *library, size_t size);

/* -1, with a message, if the ranks would not find each other with the services in
 * `served` (enum mpi_serve). */
int mpi_kind_check(enum mpi_kind kind, const char *program, const char *library,
                   unsigned served, uint32_t nranks, struct ddp_err *err);

#endif
