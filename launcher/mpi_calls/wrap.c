/* launcher/mpi_calls/wrap.c - stand before the calls of mpi_calls.def
 *
 * A library that is loaded before MPI's. It is no user of mpi.h: one file serves all
 * MPIs, whose handles differ in type. On x86-64 and AArch64 an int, a handle or a pointer
 * is passed in the same place as a long, and the upper half of an int is not looked at.
 *
 * MPI 4's functions for large counts, as MPI_Send_c, are in a library of their own, of
 * this file with LARGE_COUNTS, which is loaded only where MPI has them: mpi4py, for one,
 * refers to them weakly, and would take ours for its MPI's.
 *
 * Open MPI's Fortran calls PMPI_*, which is behind us: mpi_barrier_ is that of mpif.h and
 * of the module mpi, mpi_barrier_f08_ that of mpi_f08. MPICH's calls
 * MPI_*, or PMPI_* from mpi_f08 where there is no buffer.
 */
#include "common/mpi_calls.h"
#include "launcher/mpi_calls/find.h"
#include "launcher/mpi_calls/record.h"

#include <stdatomic.h>

enum {
#define COLLECTIVE(name, ...) CALL_##name,
#define BEGUN                 COLLECTIVE
#define ENDING                COLLECTIVE
#define MADE                  COLLECTIVE
#define MESSAGE               COLLECTIVE
#define NEWER                 COLLECTIVE
#define PLAIN                 COLLECTIVE
#define NAMED                 COLLECTIVE
#include "common/mpi_calls.def"
#undef COLLECTIVE
#undef NAMED
};

/* The parameters of a function with n of them, and their names. */
#define P0  void
#define P1  long a
#define P2  P1, long b
#define P3  P2, long c
#define P4  P3, long d
#define P5  P4, long e
#define P6  P5, long f
#define P7  P6, long g
#define P8  P7, long h
#define P9  P8, long i
#define P10 P9, long j
#define P11 P10, long k
#define P12 P11, long l
#define P13 P12, long m
#define A0
#define A1  a
#define A2  A1, b
#define A3  A2, c
#define A4  A3, d
#define A5  A4, e
#define A6  A5, f
#define A7  A6, g
#define A8  A7, h
#define A9  A8, i
#define A10 A9, j
#define A11 A10, k
#define A12 A11, l
#define A13 A12, m
/* Fortran's have one more: where the error code goes. */
#define F0  1
#define F1  2
#define F2  3
#define F3  4
#define F4  5
#define F5  6
#define F6  7
#define F7  8
#define F8  9
#define F9  10
#define F10 11
#define F11 12
#define F12 13

#define JOIN(x, y)  JOIN_(x, y)
#define JOIN_(x, y) x##y
#define FUNCTION(call, symbol, n, passed)                                            \
    int symbol(JOIN(P, n));                                                          \
    __attribute__((visibility("default"))) int symbol(JOIN(P, n))                    \
    {                                                                                \
        static int (*_Atomic next)(JOIN(P, n));                                      \
        int (*real)(JOIN(P, n)) = atomic_load_explicit(&next, memory_order_relaxed); \
        if (!real)                                                                   \
            next = real = (int (*)(JOIN(P, n)))ddprun_mpi_next(#symbol);             \
        const long args[] = {JOIN(A, n)};                                            \
        void *entered = ddprun_mpi_enter(CALL_##call, args, passed);                 \
        int rc = real(JOIN(A, n));                                                   \
        ddprun_mpi_leave(entered, CALL_##call, args, passed,                         \
                         passed == PASSED_FORTRAN ? record_code(args[n - 1]) : rc);  \
        return rc;                                                                   \
    }
#define FUNCTIONS(name, fortran, n)                              \
    FUNCTION(name, MPI_##name, n, PASSED_C)                      \
    FUNCTION(name, mpi_##fortran##_, JOIN(F, n), PASSED_FORTRAN) \
    FUNCTION(name, mpi_##fortran##_f08_, JOIN(F, n), PASSED_FORTRAN)
#ifdef LARGE_COUNTS /* with names that MPI does not have, as MPI_Barrier_c: not used */
#define COLLECTIVE(name, fortran, n, ...) FUNCTION(name, MPI_##name##_c, n, PASSED_LARGE)
#undef NEWER
#define NEWER(name, fortran, n, ...) \
    FUNCTIONS(name, fortran, n) COLLECTIVE(name, fortran, n)
#define NAMED(name, n, comm)
#undef MADE
#define MADE(...)
#undef ENDING
#define ENDING(...)
#else
#define COLLECTIVE(name, fortran, n, ...) FUNCTIONS(name, fortran, n)
#undef NEWER
#define NEWER(...)
#define NAMED(name, n, comm) FUNCTION(name, MPI_##name, n, PASSED_C)
#endif
#include "common/mpi_calls.def"
