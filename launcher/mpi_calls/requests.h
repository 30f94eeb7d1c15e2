/* launcher/mpi_calls/requests.h - collectives that have begun and not ended: MPI_I...
 *
 * A rank that waits for nothing but such collectives is in the first of them, for a
 * report, until the call returns. It is not if it waits for a message, too: then they may
 * have ended long ago. With more of them than there are entries the oldest is forgotten.
 */
#ifndef LAUNCHER_MPI_CALLS_REQUESTS_H
#define LAUNCHER_MPI_CALLS_REQUESTS_H

#include "common/mpi_calls.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The requests of a call: handles of C, of which `null` is that of none. */
struct requests {
    size_t n;
    const void *array;
    long (*handle)(const void *array, size_t i);
    long null;
};

extern atomic_uint requests_begun; /* how many; with 0 calls need nothing of the below */

/* The last collective of `r` has begun. */
void requests_begin(struct mpi_comm_record *r, long handle);

/* A call has these; with `waits` it returns when all have ended. */
void requests_enter(const struct requests *its, bool waits, int64_t now_ms);
/* It returns: MPI has set those that have ended to another value. */
void requests_leave(const struct requests *its);

#endif
