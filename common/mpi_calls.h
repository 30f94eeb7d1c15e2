/* common/mpi_calls.h - the MPI calls that a rank is in: a file that it maps
 *
 * ddprun-mpi-calls.so writes it in a rank of MPI, to the file whose name begins with
 * DDPRUN_DIAGNOSE; ddprun-diagnose reads it while the rank runs (doc/hangs.md).
 *
 * A communicator has one collective at a time, a thread one call that waits for messages.
 * `call` is a row of common/mpi_calls.def. Times are of CLOCK_MONOTONIC_COARSE. A reader
 * that comes between two stores sees parts of two calls: it is there for ranks that have
 * not gone on for seconds.
 */
#ifndef COMMON_MPI_CALLS_H
#define COMMON_MPI_CALLS_H

#include <stdint.h>

/* Of the user: "on", also where the program that ddprun starts is not MPI's, as a script;
 * "off". */
#define MPI_CALLS_WISH "DDPRUN_MPI_CALLS"

enum { MPI_CALLS_VERSION = 2, MPI_CALLS_COMMS = 128, MPI_CALLS_THREADS = 8 };
enum { MPI_CALLS_TYPE = 32, MPI_CALLS_NAME = 48, MPI_CALLS_MEMBERS = 128 };

/* A collective. */
struct mpi_call_record {
    uint64_t number; /* in its communicator, from 1 */
    int64_t at_ms;   /* when it was entered */
    uint32_t call;
    int32_t root;   /* -1: it has none */
    int64_t count;  /* of elements; -1: may differ between ranks */
    uint32_t bytes; /* of an element */
    char type[MPI_CALLS_TYPE];
};

struct mpi_comm_record {
    _Atomic uint64_t id;            /* the same on all its ranks; 0: not in use */
    _Atomic uint64_t entered, done; /* numbers of its last collective, from 1 */
    /* The last one; the one before it that a wait was for, number 0: none. */
    struct mpi_call_record last, waited;
    char name[MPI_CALLS_NAME];
    uint32_t size;
    uint32_t all;                    /* its ranks are those of the job */
    char members[MPI_CALLS_MEMBERS]; /* "0-3,8"; "": all, or too many to be listed */
};

struct mpi_wait_record {
    _Atomic int64_t at_ms; /* when it was entered */
    _Atomic uint32_t in;   /* 0: it has returned */
    uint32_t call;
    int32_t peer, tag; /* rank of the job; -1: any; -2: not known, or no rank */
};

struct mpi_calls_file {
    uint32_t version, comms, threads;
    uint32_t partly; /* it has more communicators than there are records */
    struct mpi_wait_record wait[MPI_CALLS_THREADS]; /* the first: of the main thread */
    struct mpi_comm_record comm[MPI_CALLS_COMMS];
};

/* --- the calls ---------------------------------------------------------------------- */

enum mpi_call_kind { MPI_CALL_COLLECTIVE, MPI_CALL_WAIT, MPI_CALL_TEST, MPI_CALL_NAME };

struct mpi_call {
    const char *name; /* "MPI_Barrier" */
    enum mpi_call_kind kind;
    /* indices of its arguments, or NO; at `requests` is where they are */
    int comm, root, count, type, made, peer, tag, nrequests, requests;
    int same; /* what it makes has the same ranks */
    int all;  /* it returns when all of these requests have ended */
};

enum { NO = -1 };
#define ROW(name, kind, ...) {"MPI_" #name, MPI_CALL_##kind, __VA_ARGS__},
#define COLLECTIVE(name, fortran, n, comm, root, count, type) \
    ROW(name, COLLECTIVE, comm, root, count, type, NO, NO, NO, NO, NO, 0, 0)
#define BEGUN(name, fortran, n, comm, root, count, type) \
    ROW(name, COLLECTIVE, comm, root, count, type, NO, NO, NO, NO, (n)-1, 0, 0)
#define MADE(name, fortran, n, comm, made, same) \
    ROW(name, COLLECTIVE, comm, NO, NO, NO, made, NO, NO, NO, NO, same, 0)
#define MESSAGE(name, fortran, n, comm, peer, tag) \
    ROW(name, WAIT, comm, NO, NO, NO, NO, peer, tag, NO, NO, 0, 0)
#define ENDING(name, fortran, n, kind, all, nrequests, requests) \
    ROW(name, kind, NO, NO, NO, NO, NO, NO, NO, nrequests, requests, 0, all)
#define WAITING(name, fortran, n) MESSAGE(name, fortran, n, NO, NO, NO)
#define NAMED(name, n, comm)      ROW(name, NAME, comm, NO, NO, NO, NO, NO, NO, NO, NO, 0, 0)
static const struct mpi_call mpi_calls[] = {
#include "common/mpi_calls.def"
};
#undef ROW
#undef COLLECTIVE
#undef BEGUN
#undef ENDING
#undef MADE
#undef MESSAGE
#undef WAITING
#undef NAMED

#endif
