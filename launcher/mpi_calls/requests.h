/* launcher/mpi_calls/requests.h - collectives that have begun and not ended: MPI_I...
 *
 * A rank that waits for the request of one is in that collective, for a report, until the
 * call returns. Requests are compared as they were passed: those of C in C's calls, those
 * of Fortran in Fortran's.
 */
#ifndef LAUNCHER_MPI_CALLS_REQUESTS_H
#define LAUNCHER_MPI_CALLS_REQUESTS_H

#include "common/mpi_calls.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The requests of a call: `n` handles of `bytes` each. */
struct requests {
    const char *at;
    size_t n, bytes;
};

/* The last collective of `r` has begun, with this request. With too many of them it is
 * not recorded further. */
void requests_begin(struct mpi_comm_record *r, struct requests its);

extern atomic_uint requests_begun; /* how many; with 0 calls need nothing of the below */

/* A call waits for these (`all` of them), or for some, or tests them; MPI sets those that
 * have ended to another value. */
void requests_enter(struct requests of, bool all, int64_t now_ms);
void requests_leave(struct requests of, bool all);

#endif
