/* launcher/mpi_calls/record.h - what this rank does in MPI
 *
 * Arguments are those of a call of MPI as they were passed, each as a `long`: handles are
 * pointers (Open MPI, MPI 5's ABI) or ints in the lower half (MPICH).
 *
 * A second library calls these functions, so their names are those of the process.
 */
#ifndef LAUNCHER_MPI_CALLS_RECORD_H
#define LAUNCHER_MPI_CALLS_RECORD_H

#include <stdint.h>

enum passed {
    PASSED_C,
    PASSED_LARGE,   /* by MPI_..._c: a count takes the whole `long` */
    PASSED_FORTRAN, /* all are addresses */
};

/* A row of mpi_calls[] is entered. What it returns is for ddprun_mpi_leave(); NULL: the
 * call is made by MPI itself, or nothing is recorded. */
void *ddprun_mpi_enter(uint32_t call, const long *args, enum passed passed);
/* `rc`: its error code; 0 is MPI_SUCCESS. */
void ddprun_mpi_leave(void *entered, uint32_t call, const long *args, enum passed passed,
                      int rc);

/* The error code that a function of Fortran has put to its last argument, which may be 0:
 * none is wanted. */
static inline int record_code(long last)
{
    return last ? *(const int *)last : 0;
}

#endif
