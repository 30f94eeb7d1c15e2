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

enum { MPI_CALLS_VERSION = 3, MPI_CALLS_COMMS = 128, MPI_CALLS_THREADS = 8 };
enum { MPI_CALLS_TYPE = 32, MPI_CALLS_NAME = 48, MPI_CALLS_MEMBERS = 128 };
enum { MPI_CALLS_SLOT_BITS = 10, MPI_CALLS_SLOTS = 1 << MPI_CALLS_SLOT_BITS };
enum { MPI_CALLS_WAITED = 64, MPI_ANY = -1 };

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

/* How many messages this rank has begun to send to another, and to receive from it, with
 * one tag in one communicator. MPI receives them in the order in which they were sent. */
struct mpi_messages_record {
    _Atomic uint64_t comm; /* its id; 0: not in use */
    int32_t peer, tag;     /* rank of the job; MPI_ANY */
    _Atomic uint32_t sent, received;
};

/* One of them, or another one. */
struct mpi_message_record {
    uint64_t comm;     /* its id; 0: not known */
    int32_t peer, tag; /* rank of the job; MPI_ANY; -2: not known, or no rank */
    uint32_t number;   /* from 1; 0: it is not counted */
    uint32_t sends;
};

struct mpi_request_record {
    _Atomic int64_t handle; /* as the call has it: it may be an int. 0: none */
    struct mpi_message_record is;
};

struct mpi_wait_record {
    _Atomic int64_t at_ms; /* when it was entered */
    _Atomic uint32_t in;   /* 0: it has returned */
    uint32_t call;
    struct mpi_message_record is[2]; /* MPI_Sendrecv has two */
    uint32_t nrequests, more; /* the first of those that it waits for; there are more */
    int64_t request[MPI_CALLS_WAITED]; /* 0: none */
};

struct mpi_calls_file {
    uint32_t version, comms, threads;
    uint32_t partly;       /* it has more communicators than there are records */
    _Atomic uint32_t full; /* `messages` are not all: no more are taken */
    uint32_t uncounted; /* messages may have been sent or received that are not counted */
    struct mpi_wait_record wait[MPI_CALLS_THREADS]; /* the first: of the main thread */
    struct mpi_comm_record comm[MPI_CALLS_COMMS];
    struct mpi_messages_record messages[MPI_CALLS_SLOTS];
    /* Each in one place, until another takes it: mpi_calls_hash() of its handle. */
    struct mpi_request_record request[MPI_CALLS_SLOTS];
};

static inline uint32_t mpi_calls_hash(uint64_t x)
{
    return (uint32_t)(x * UINT64_C(0x9e3779b97f4a7c15) >> (64 - MPI_CALLS_SLOT_BITS));
}

/* --- the calls ---------------------------------------------------------------------- */

enum mpi_call_kind {
    MPI_CALL_COLLECTIVE,
    MPI_CALL_MESSAGE, /* waits for one, which is counted */
    MPI_CALL_PROBE,   /* which is not */
    MPI_CALL_POST,    /* does not wait */
    MPI_CALL_WAIT,
    MPI_CALL_TEST,
    MPI_CALL_NAME,
    MPI_CALL_UNCOUNTED,
};

struct mpi_call {
    const char *name; /* "MPI_Barrier" */
    enum mpi_call_kind kind;
    /* indices of its arguments, or NO; at `requests` is where they are */
    int comm, root, count, type, made, from, from_tag, to, to_tag, nrequests, requests;
    int same; /* what it makes has the same ranks */
    int all;  /* it returns when all of these requests have ended */
};

enum { NO = -1 };
#define NO4                  NO, NO, NO, NO
#define ROW(name, kind, ...) {"MPI_" #name, MPI_CALL_##kind, __VA_ARGS__},
#define COLLECTIVE(name, fortran, n, comm, root, count, type) \
    ROW(name, COLLECTIVE, comm, root, count, type, NO, NO4, NO, NO, 0, 0)
#define BEGUN(name, fortran, n, comm, root, count, type) \
    ROW(name, COLLECTIVE, comm, root, count, type, NO, NO4, NO, (n)-1, 0, 0)
#define MADE(name, fortran, n, comm, made, same) \
    ROW(name, COLLECTIVE, comm, NO, NO, NO, made, NO4, NO, NO, same, 0)
#define MESSAGE(name, fortran, n, kind, comm, from, from_tag, to, to_tag) \
    ROW(name, kind, comm, NO, NO, NO, NO, from, from_tag, to, to_tag, NO, \
        MPI_CALL_##kind == MPI_CALL_POST ? (n)-1 : NO, 0, 0)
#define NEWER MESSAGE
#define ENDING(name, fortran, n, kind, all, nrequests, requests) \
    ROW(name, kind, NO4, NO, NO4, nrequests, requests, 0, all)
#define PLAIN(name, fortran, n, kind) ROW(name, kind, NO4, NO, NO4, NO, NO, 0, 0)
#define NAMED(name, n, comm)          ROW(name, NAME, comm, NO, NO, NO, NO, NO4, NO, NO, 0, 0)
static const struct mpi_call mpi_calls[] = {
#include "common/mpi_calls.def"
};
#undef NO4
#undef ROW
#undef COLLECTIVE
#undef BEGUN
#undef ENDING
#undef MADE
#undef MESSAGE
#undef NEWER
#undef PLAIN
#undef NAMED

#endif
