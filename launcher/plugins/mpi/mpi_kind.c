/* launcher/plugins/mpi/mpi_kind.c - see mpi_kind.h
 *
 * By soname: Open MPI's libmpi.so has version 0 or 1 (up to 1.8), 12 (1.10), 20 (2) or 40
 * (3 to 5). MPICH, Intel MPI and MVAPICH use 12 as well: there Open MPI's library is
 * recognised by needing libopen-pal.
 */
#include "launcher/plugins/mpi/mpi_kind.h"

#include "common/elf_file.h"
#include "common/err.h"
#include "common/mem.h"
#include "launcher/opts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name; /* a prefix */
    enum mpi_kind kind;
} names[] = {
    {"libmpi.so.40", MPI_WANTS_PMIX},  {"libpmix.so.", MPI_WANTS_PMIX},
    {"libmpi.so.20", MPI_TOO_OLD},     {"libmpi.so.12", MPI_WANTS_PMI},
    {"libmpi.so.1", MPI_TOO_OLD},      {"libmpi.so.0", MPI_TOO_OLD},
    {"libmpich.so.", MPI_WANTS_PMI},   {"libmpichcxx.so.", MPI_WANTS_PMI},
    {"libmpifort.so.", MPI_WANTS_PMI}, /* MPICH's; Open MPI's is libmpi_mpifh */
};

static bool begins(const char *text, const char *beginning)
{
    return strncmp(text, beginning, strlen(beginning)) == 0;
}

/* Whether the library of this name is Open MPI's. */
static bool is_open_mpi(const char *path, const struct elf *elf, const char *library_path,
                        const char *library)
{
    SCOPED(elf_finish) struct elf own = {0};
    bool found = false;
    OWNED char *file = elf_find(path, elf, library_path, library);
    if (file)
        elf_read(file, &own);
    for (size_t i = 0; i < own.needs.n; i++)
        found |= begins(own.needs.v[i], "libopen-pal.so");
    return found;
}

static enum mpi_kind kind_of_name(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (begins(name, names[i].name))
            return names[i].kind;
    }
    return MPI_UNSEEN;
}

enum mpi_kind mpi_kind_of(const char *path, const struct elf *elf,
                          const char *library_path, char *library, size_t size)
{
    enum mpi_kind kind = MPI_UNSEEN;
    library[0] = '\0';
    for (size_t i = 0; i < elf->needs.n && kind == MPI_UNSEEN; i++) {
        const char *name = elf->needs.v[i];
        kind = kind_of_name(name);
        if (kind == MPI_WANTS_PMI && begins(name, "libmpi.so.12") &&
            is_open_mpi(path, elf, library_path, name))
            kind = MPI_TOO_OLD;
        if (kind != MPI_UNSEEN)
            snprintf(library, size, "%s", name);
    }
    return kind;
}

int mpi_kind_check(enum mpi_kind kind, const char *program, const char *library,
                   unsigned served, uint32_t nranks, struct ddp_err *err)
{
    const char *what = NULL;
    if (kind == MPI_TOO_OLD)
        what = "an Open MPI before 3, which only its own mpirun can start";
    else if (kind == MPI_WANTS_PMIX && !(served & MPI_PMIX))
        what = "PMIx, which is not served here (ddprun-pmix is not installed: built "
               "without libpmix)";
    else if (kind == MPI_WANTS_PMI && !(served & MPI_PMI))
        what = "PMI, which is not served with these --mpi and --rank-names";
    if (!what || nranks < 2)
        return 0;
    return err_set(
        err,
        "'%.200s' needs %s (it is linked to %s): it would run as %u programs of "
        "one rank each; with --mpi none it does",
        program, what, library, nranks);
}
