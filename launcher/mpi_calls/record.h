/* launcher/mpi_calls/record.h - what this rank does in MPI
 *
 * Arguments are those of a call of MPI as they were passed, each as a `long`: handles are
 * pointers (Open MPI, MPI 5's ABI) or ints in the lower half (MPICH).
 */
#ifndef LAUNCHER_MPI_CALLS_RECORD_H
#define LAUNCHER_MPI_CALLS_RECORD_H

#include <stdbool.h>
#include <stdint.h>

/* A row of mpi_calls[] is entered. With `fortran` all arguments are addresses. What it
 * returns is for record_leave(); NULL: the call is made by MPI itself, or nothing is
 * recorded. */
void *record_enter(uint32_t call, const long *args, bool fortran);
/* `rc`: its error code; 0 is MPI_SUCCESS. */
void record_leave(void *entered, uint32_t call, const long *args, bool fortran, int rc);

/* The error code that a function of Fortran has put to its last argument, which may be 0:
 * none is wanted. */
static inline int record_code(long last)
{
    return last ? *(const int *)last : 0;
}

#endif
