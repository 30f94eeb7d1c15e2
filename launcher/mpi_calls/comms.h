/* launcher/mpi_calls/comms.h - the communicators of this process, by their handles
 *
 * Ranks have to give a communicator the same name. What a collective makes is named after
 * the parent and its number there; one by some of the ranks alone (MPI_Comm_create_group,
 * MPI_Intercomm_merge) after its members. Communicators that are made in another way
 * (MPI_Comm_idup), between two groups, with ranks of other jobs, or of one rank only are
 * not recorded.
 */
#ifndef LAUNCHER_MPI_CALLS_COMMS_H
#define LAUNCHER_MPI_CALLS_COMMS_H

#include "common/mpi_calls.h"

#include <stdbool.h>
#include <stdint.h>

struct comm {
    _Atomic long handle; /* 0: not in use; set last */
    int size;
    int *world;                /* owned: the job's rank of each of its ranks */
    struct mpi_comm_record *r; /* NULL: it is not recorded */
    uint64_t nmade;            /* communicators that its collectives have made */
    /* Of elements in its last collective; `type` is 0 unless it is one of MPI's own. */
    long type;
    uint32_t bytes;
    char type_name[MPI_CALLS_TYPE];
    struct comm *next;
};

/* MPI has been found and initialised (find.h); records are put to `f`, which stays. */
void comms_begin(struct mpi_calls_file *f);

/* NULL: it is not recorded. */
struct comm *comm_of(long handle);
/* One has been made, by a collective of `parent` (`same`: it has the same ranks), or by
 * its members alone (NULL). */
void comm_made(long handle, struct comm *parent, bool same);
/* It has been given a name. */
void comm_named(struct comm *c);

#endif
