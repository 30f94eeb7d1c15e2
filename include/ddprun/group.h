/* include/ddprun/group.h - process groups: what the ranks of a job say to each other
 *
 * A group is an ordered set of ranks that meet through the store (store.h). Every member
 * makes the same collective calls in the same order; ranks that do not are told so. Ranks
 * of one host talk through shared memory, ranks of different hosts over TCP; collectives
 * over several hosts are done first within and then between hosts, chunk by chunk.
 *
 * The same bits arrive on every rank, and the same bits from run to run for the same
 * number of ranks, layout over hosts, type and count: each element is reduced by one rank
 * (or by several in the same way), in an order that depends on these alone and never on
 * who arrives first or where a buffer lies:
 *     within a host             in rank order, from the left: ((x0 + x1) + x2) + ...
 *     between hosts, <= 32 KiB  recursive doubling: neighbours, then pairs of pairs, the
 *                               lower host's operand on the left (two hosts: <= 128 KiB)
 *     between hosts, longer     a ring: slice i of n starts at host i and is folded once
 *                               around
 * reduce folds like all_reduce, but with more than 32 KiB between hosts along a chain of
 * hosts that ends at the root's, from the host behind it on. Integers and floats are
 * added in their own type, integers wrap around; f16 and bf16 are folded in f32 and
 * rounded to the nearest even once per host and once per hop between hosts. DDP_AVG
 * divides the sum at the end (integers: towards zero). DDP_MAX and DDP_MIN give NaN when
 * an operand is NaN. DDP_BAND, DDP_BOR and DDP_BXOR are for integers.
 *
 * ddp_barrier() returns only when every member has entered it; the others promise no more
 * than their result. When a rank dies, every pending and later call on all others fails
 * with the same error, which names it; when the deadline passes, with one that names who
 * has not come. Errors of arguments alone ("root 9 in a group of 2") leave the group
 * whole.
 *
 * Calls return 0, or -1 with `err` filled. Every call has the group's deadline. After an
 * error the group is broken: every later call fails at once with the first error, and
 * ddp_group_destroy() is clean. One thread at a time per group and all groups made from
 * it.
 */
#ifndef DDPRUN_GROUP_H
#define DDPRUN_GROUP_H

#include "err.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ddp_group;
struct ddp_request; /* an operation under way; ends with ddp_wait() or ddp_test() */

enum ddp_type {
    DDP_F32,
    DDP_F64,
    DDP_I32,
    DDP_I64,
    DDP_U8,
    DDP_F16, /* IEEE binary16 */
    DDP_BF16,
    DDP_I8
};
enum ddp_op {
    DDP_SUM,
    DDP_PRODUCT,
    DDP_MAX,
    DDP_MIN,
    DDP_AVG,
    DDP_BAND, /* bit by bit: integers only */
    DDP_BOR,
    DDP_BXOR
};

struct ddp_group_options {
    int rank, size;          /* -1, 0: from the environment (RANK, WORLD_SIZE, ...) */
    const char *master_addr; /* NULL: MASTER_ADDR */
    int master_port;         /* 0: MASTER_PORT */
    const char *name;        /* key prefix in the store; NULL: "ddp" */
    int64_t timeout_ms;      /* 0: 5 minutes */
    size_t arena_bytes; /* room for ddp_arena_alloc(); 0: 64 MiB, reserved not used */
    /* NULL: choose; "tcp": sockets also within a host; "nccl": CUDA memory, by libnccl;
     * "mpi": by the MPI that the process runs under, which then also assigns the ranks.
     * With these two the library keeps watch beside NCCL and MPI, so that errors are as
     * below; but MPI does not give back the buffers of what it has begun, a rank that
     * dies inside of MPI_Init is the launcher's to notice, and a process with a broken
     * group ends without MPI_Finalize */
    const char *backend;
    /* Where the ranks meet; NULL: DDP_MEETING, or env:// where MASTER_ADDR is known, or
     * else launcher://. Under srun, mpirun and others that run no store MASTER_ADDR and
     * MASTER_PORT together mean tcp://, and alone nothing.
     *   env://            the store at master_addr:master_port
     *   tcp://host:port   no store: rank 0 listens there until all have come
     *   file:///path      no store: a file that all hosts see and that need not exist;
     *                     what an earlier run has left in it is noticed
     *   launcher://       no store: rank 0 listens, and the launcher (PMIx or PMI of
     *                     mpirun, Hydra, Flux, srun --mpi) says where; or, in a step of
     *                     Slurm without either, where follows from the step's number */
    const char *meeting;
};

/* Environment: RANK and WORLD_SIZE, or the variables of Open MPI, Hydra, Slurm, PALS or
 * Flux; MASTER_ADDR and MASTER_PORT; GLOO_SOCKET_IFNAME, the interface that other hosts
 * reach this one by (default: the one towards MASTER_ADDR); DDP_HOST_ID, to part what
 * looks like one host but is not, e.g. machines cloned from one snapshot; DDP_MEETING,
 * where to meet. */

/* NULL options: everything from the environment. Without RANK and WORLD_SIZE, or with
 * size 1, a group of one that needs no store. */
DDP_API struct ddp_group *ddp_group_init(const struct ddp_group_options *options,
                                         struct ddp_err *err);
DDP_API void ddp_group_destroy(struct ddp_group *g); /* NULL is fine */

/* From now on; 0: 5 minutes. */
DDP_API void ddp_group_set_timeout(struct ddp_group *g, int64_t timeout_ms);

/* A group of the `n` ranks of g that `ranks` names, in that order: exactly they call, all
 * with the same list. It has a deadline (at first that of g), an arena and errors of its
 * own, and may be used while g is, and after g has been destroyed. Collectives of several
 * groups may be under way at once: waiting in one goes on with all. */
DDP_API struct ddp_group *ddp_group_sub(struct ddp_group *g, const int *ranks, int n,
                                        struct ddp_err *err);
/* All of g call: those of one colour (0 or more) become a group, in the order of `key`,
 * then of their ranks in g. *sub is NULL for a negative colour. */
DDP_API int ddp_group_split(struct ddp_group *g, int colour, int key,
                            struct ddp_group **sub, struct ddp_err *err);

DDP_API int ddp_group_rank(const struct ddp_group *g);
DDP_API int ddp_group_size(const struct ddp_group *g);
DDP_API const char *
ddp_group_backend(const struct ddp_group *g); /* "shm", "tcp", "shm+tcp", "nccl", "mpi" */

/* Memory that the ranks of this host share: collectives on buffers inside it are done in
 * place, without copies, when all ranks of the host give such a buffer. Zeroed, 64-byte
 * aligned, freed with the group. The pages are taken at once, so that a lack of memory is
 * an error here and not a signal later. */
DDP_API void *ddp_arena_alloc(struct ddp_group *g, size_t bytes, struct ddp_err *err);
/* Where a rank of this host has what `mine`, which lies in my arena, is to me: the same
 * place of its arena. It is the same block where both have allocated the same sizes in
 * the same order; of my own rank it is `mine`. NULL: the rank is on another host, or
 * `mine` is not in the arena. What one rank writes before a barrier (or an all_reduce)
 * others read after it; the memory stays when a rank ends, until the group goes. */
DDP_API void *ddp_arena_of(const struct ddp_group *g, const void *mine, int rank);

/* ---- collectives ----
 *
 * `count` and `counts` are elements. counts[r] is the block of rank r, blocks lie one
 * after the other in rank order; the array is copied. Where only the root gives or gets,
 * the others' pointer may be NULL. Buffers of one call overlap only where it is said. */

DDP_API int ddp_barrier(struct ddp_group *g, struct ddp_err *err);
/* With a deadline of its own (0: the group's), and an error that names all ranks that
 * have not come, not just a few. */
DDP_API int ddp_monitored_barrier(struct ddp_group *g, int64_t timeout_ms,
                                  struct ddp_err *err);
DDP_API int ddp_broadcast(struct ddp_group *g, void *buf, size_t count,
                          enum ddp_type type, int root, struct ddp_err *err);
/* recv is the root's; send may be recv. */
DDP_API int ddp_reduce(struct ddp_group *g, const void *send, void *recv, size_t count,
                       enum ddp_type type, enum ddp_op op, int root, struct ddp_err *err);
/* In place: buf holds each rank's contribution, then the result. */
DDP_API int ddp_all_reduce(struct ddp_group *g, void *buf, size_t count,
                           enum ddp_type type, enum ddp_op op, struct ddp_err *err);
/* `count` elements from each rank; the root's recv holds size*count, in rank order. The
 * root's send may be its own block of recv. */
DDP_API int ddp_gather(struct ddp_group *g, const void *send, void *recv, size_t count,
                       enum ddp_type type, int root, struct ddp_err *err);
DDP_API int ddp_gatherv(struct ddp_group *g, const void *send, size_t count, void *recv,
                        const size_t *counts, enum ddp_type type, int root,
                        struct ddp_err *err);
/* The root's send holds size*count; rank r gets the r-th block of count. The root's recv
 * may be its own block of send. */
DDP_API int ddp_scatter(struct ddp_group *g, const void *send, void *recv, size_t count,
                        enum ddp_type type, int root, struct ddp_err *err);
DDP_API int ddp_scatterv(struct ddp_group *g, const void *send, const size_t *counts,
                         void *recv, size_t count, enum ddp_type type, int root,
                         struct ddp_err *err);
/* `count` elements from each rank; recv holds size*count, in rank order. send may be the
 * rank's own block of recv. */
DDP_API int ddp_all_gather(struct ddp_group *g, const void *send, void *recv,
                           size_t count, enum ddp_type type, struct ddp_err *err);
/* The same counts on every rank; mine is counts[rank]. */
DDP_API int ddp_all_gatherv(struct ddp_group *g, const void *send, void *recv,
                            const size_t *counts, enum ddp_type type,
                            struct ddp_err *err);
/* send holds size*count; rank r gets the reduction of all r-th blocks of count.
 * recv may be the rank's own block of send. */
DDP_API int ddp_reduce_scatter(struct ddp_group *g, const void *send, void *recv,
                               size_t count, enum ddp_type type, enum ddp_op op,
                               struct ddp_err *err);
/* The same counts on every rank. */
DDP_API int ddp_reduce_scatterv(struct ddp_group *g, const void *send, void *recv,
                                const size_t *counts, enum ddp_type type, enum ddp_op op,
                                struct ddp_err *err);
/* My r-th block of send becomes my rank's block of recv on rank r. */
DDP_API int ddp_all_to_all(struct ddp_group *g, const void *send, void *recv,
                           size_t count, enum ddp_type type, struct ddp_err *err);
DDP_API int ddp_all_to_allv(struct ddp_group *g, const void *send,
                            const size_t *send_counts, void *recv,
                            const size_t *recv_counts, enum ddp_type type,
                            struct ddp_err *err);

/* ---- messages ----
 *
 * In order per pair and tag (0..2^31-1). send returns when the buffer can be used again;
 * recv when `bytes` have come (a message of another size breaks the group). A message
 * that comes before its tag is asked for is kept in memory while one with another tag is
 * awaited from the same rank. Both sides may isend before either receives, at any size.
 */
DDP_API int ddp_send(struct ddp_group *g, const void *buf, size_t bytes, int dest,
                     int tag, struct ddp_err *err);
DDP_API int ddp_recv(struct ddp_group *g, void *buf, size_t bytes, int source, int tag,
                     struct ddp_err *err);
/* From any rank that sends with this tag; *source, which may be NULL, gets its number. A
 * message matches the receive that was posted first, with a source or without. */
DDP_API int ddp_recv_any(struct ddp_group *g, void *buf, size_t bytes, int tag,
                         int *source, struct ddp_err *err);

/* ---- without waiting ----
 *
 * The buffer belongs to the request until it has ended. Progress is made inside
 * ddp_test(), ddp_wait() and other calls on the group or one of its family; there is no
 * thread. Non-blocking collectives of one group run in the order in which they were
 * started. What has not been tested or waited for to its end goes with the group. */
DDP_API struct ddp_request *ddp_isend(struct ddp_group *g, const void *buf, size_t bytes,
                                      int dest, int tag, struct ddp_err *err);
DDP_API struct ddp_request *ddp_irecv(struct ddp_group *g, void *buf, size_t bytes,
                                      int source, int tag, struct ddp_err *err);
DDP_API struct ddp_request *ddp_irecv_any(struct ddp_group *g, void *buf, size_t bytes,
                                          int tag, int *source, struct ddp_err *err);
DDP_API struct ddp_request *ddp_ibarrier(struct ddp_group *g, struct ddp_err *err);
DDP_API struct ddp_request *ddp_ibroadcast(struct ddp_group *g, void *buf, size_t count,
                                           enum ddp_type type, int root,
                                           struct ddp_err *err);
DDP_API struct ddp_request *ddp_ireduce(struct ddp_group *g, const void *send, void *recv,
                                        size_t count, enum ddp_type type, enum ddp_op op,
                                        int root, struct ddp_err *err);
DDP_API struct ddp_request *ddp_iall_reduce(struct ddp_group *g, void *buf, size_t count,
                                            enum ddp_type type, enum ddp_op op,
                                            struct ddp_err *err);
DDP_API struct ddp_request *ddp_igather(struct ddp_group *g, const void *send, void *recv,
                                        size_t count, enum ddp_type type, int root,
                                        struct ddp_err *err);
DDP_API struct ddp_request *ddp_igatherv(struct ddp_group *g, const void *send,
                                         size_t count, void *recv, const size_t *counts,
                                         enum ddp_type type, int root,
                                         struct ddp_err *err);
DDP_API struct ddp_request *ddp_iscatter(struct ddp_group *g, const void *send,
                                         void *recv, size_t count, enum ddp_type type,
                                         int root, struct ddp_err *err);
DDP_API struct ddp_request *ddp_iscatterv(struct ddp_group *g, const void *send,
                                          const size_t *counts, void *recv, size_t count,
                                          enum ddp_type type, int root,
                                          struct ddp_err *err);
DDP_API struct ddp_request *ddp_iall_gather(struct ddp_group *g, const void *send,
                                            void *recv, size_t count, enum ddp_type type,
                                            struct ddp_err *err);
DDP_API struct ddp_request *ddp_iall_gatherv(struct ddp_group *g, const void *send,
                                             void *recv, const size_t *counts,
                                             enum ddp_type type, struct ddp_err *err);
DDP_API struct ddp_request *ddp_ireduce_scatter(struct ddp_group *g, const void *send,
                                                void *recv, size_t count,
                                                enum ddp_type type, enum ddp_op op,
                                                struct ddp_err *err);
DDP_API struct ddp_request *ddp_ireduce_scatterv(struct ddp_group *g, const void *send,
                                                 void *recv, const size_t *counts,
                                                 enum ddp_type type, enum ddp_op op,
                                                 struct ddp_err *err);
DDP_API struct ddp_request *ddp_iall_to_all(struct ddp_group *g, const void *send,
                                            void *recv, size_t count, enum ddp_type type,
                                            struct ddp_err *err);
DDP_API struct ddp_request *ddp_iall_to_allv(struct ddp_group *g, const void *send,
                                             const size_t *send_counts, void *recv,
                                             const size_t *recv_counts,
                                             enum ddp_type type, struct ddp_err *err);
/* *done = 1 when ended; then, and on error, the request is gone. */
DDP_API int ddp_test(struct ddp_request *r, int *done, struct ddp_err *err);
DDP_API int ddp_wait(struct ddp_request *r, struct ddp_err *err);
/* Wait for at most `ms`; *done as in ddp_test(). The group's deadline counts from the
 * first of these calls. */
DDP_API int ddp_wait_for(struct ddp_request *r, int64_t ms, int *done,
                         struct ddp_err *err);
/* Call off a message of which nothing has gone or come yet: *cancelled = 1, and the
 * request is gone. Otherwise *cancelled = 0 and it goes on (as collectives always do). */
DDP_API int ddp_cancel(struct ddp_request *r, int *cancelled, struct ddp_err *err);

#ifdef __cplusplus
}
#endif
#endif
