/* include/ddprun/group.h - process groups: collectives and messages between ranks
 *
 * A group is an ordered set of ranks, which find each other through a rendezvous: the
 * store (store.h) or another one (ddp_group_options.meeting). Every member makes the same
 * collective calls in the same order; mismatched calls are reported. Ranks of one host
 * exchange data in shared memory, ranks of different hosts over TCP; collectives over
 * several hosts are done first within and then between hosts, chunk by chunk.
 *
 * Results: the same bits arrive on every rank, and the same bits from run to run for the
 * same number of ranks, layout over hosts, type and count. Each element is reduced by one
 * rank (or by several in the same way), in an order that depends on these alone and not
 * on the order of arrival or the place of a buffer:
 *     within a host             in rank order, from the left: ((x0 + x1) + x2) + ...
 *     between hosts, <= 32 KiB  recursive doubling: neighbours, then pairs of pairs, the
 *                               lower host's operand on the left (two hosts: <= 128 KiB)
 *     between hosts, longer     a ring: slice i of n starts at host i and is reduced once
 *                               around
 * (Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in
 * MPICH", IJHPCA 19(1), 2005.) reduce is like all_reduce, but with more than 32 KiB
 * between hosts along a chain of hosts that ends at the root's, beginning with the host
 * after it. Where each host has several ranks, each of these reduces a part of the data
 * with its counterparts, in chunks of 4 MiB, and sizes and slices are those of its part.
 * Integers and floats are added in their own type, integers wrap around; f16
 * and bf16 are added in f32 and rounded to the nearest even once per host and once per
 * hop between hosts. DDP_AVG divides the sum at the end (integers: towards zero). DDP_MAX
 * and DDP_MIN give NaN when an operand is NaN. DDP_BAND, DDP_BOR and DDP_BXOR are for
 * integers.
 *
 * Completion: ddp_barrier() returns only when every member has entered it; another call
 * may return as soon as this rank's part is done.
 *
 * Errors: calls return 0, or -1 with `err` filled; those that return a pointer NULL.
 * Every call has the group's deadline. When a rank dies, every pending and later call on
 * all others fails with the same error, which names it; when the deadline passes, with
 * one that names the missing ranks. Time in which this process is stopped (SIGSTOP) does
 * not count. The group is then broken: every later call fails at once with the first
 * error, and ddp_group_destroy() is clean. Errors of arguments alone ("root 9 in a group
 * of 2") do not break the group.
 *
 * Threads: one at a time per group and all groups made from it; a call is refused, as far
 * as that is noticed, while another thread waits in one. Strings and arrays of arguments
 * are borrowed for the call, unless said otherwise. Only the process that has made a
 * group may use it: in one forked from that, calls fail, and ddp_group_destroy() only
 * frees memory.
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
struct ddp_request; /* an operation in flight; ends with ddp_wait() or ddp_test() */

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
    int rank, size;          /* -1, 0: from the environment (RANK, WORLD_SIZE, ...); at
                                most 1048576 ranks */
    const char *master_addr; /* NULL: MASTER_ADDR */
    int master_port;         /* 0: MASTER_PORT (as port 0 of store.h) */
    const char *name;        /* key prefix in the store; NULL: "ddp" */
    int64_t timeout_ms;      /* 0: 5 minutes */
    size_t arena_bytes;      /* for ddp_arena_alloc(), the same on all ranks of a host:
                                the first one's counts; 0: 64 MiB of address space */
    /* NULL, "shm", "shm+tcp": choose; "tcp": sockets also within a host; "nccl": CUDA
     * memory, by libnccl; "mpi": by the MPI that the process runs under, which then also
     * assigns the ranks. The library detects failures beside NCCL and MPI, so errors are
     * as above, but with MPI the buffers of an operation that has failed may still be
     * written to, only the launcher detects a rank that dies in MPI_Init, and a process
     * with a broken group ends without MPI_Finalize (doc/group.md). */
    const char *backend;
    /* The rendezvous; NULL: DDP_MEETING, or env:// with `master_addr` and where ddprun or
     * torchrun run a store (TORCHELASTIC_USE_AGENT_STORE=True). Elsewhere MASTER_ADDR and
     * MASTER_PORT mean tcp://, as in PyTorch; without both launcher://.
     *   env://            the store at master_addr:master_port
     *   tcp://host:port   no store: rank 0 listens there until all have joined
     *   file:///path      no store: a file on a file system that all hosts share, which
     *                     need not exist; that of an earlier run is recognised
     *   launcher://       no store: rank 0 listens, and publishes its address by the
     *                     launcher's PMIx or PMI (mpirun, Hydra, Flux, srun --mpi); in a
     *                     step of Slurm without them the port follows from the step's
     *                     number */
    const char *meeting;
    /* `size` of them: the numbers of the ranks in the job, of which this is a part, for
     * errors and hang reports. NULL: the same */
    const int *world_ranks;
};

/* Environment: RANK and WORLD_SIZE, or the variables of Open MPI, Hydra, Slurm, PALS or
 * Flux; MASTER_ADDR and MASTER_PORT; DDP_MEETING, the rendezvous; GLOO_SOCKET_IFNAME, the
 * interface by which other hosts reach this one (default: the one towards MASTER_ADDR);
 * DDP_HOST_ID, different on machines that look like one host, e.g. clones of one
 * snapshot; DDP_TCP_STREAMS, the number of streams that long data go to another host by,
 * 1 to 16 (default: found by measurement). */

/* All ranks call it. NULL options: everything from the environment. Without RANK and
 * WORLD_SIZE, or with size 1, a group of one that needs no store. The caller owns the
 * group. */
DDP_API struct ddp_group *ddp_group_init(const struct ddp_group_options *options,
                                         struct ddp_err *err);
DDP_API void ddp_group_destroy(struct ddp_group *g); /* NULL is fine */

/* The deadline of each call from now on, in milliseconds; 0 or less: 5 minutes. */
DDP_API void ddp_group_set_timeout(struct ddp_group *g, int64_t timeout_ms);
DDP_API int64_t ddp_group_timeout(const struct ddp_group *g);

/* A group of the `n` ranks of g in `ranks`, in that order: exactly these ranks call it,
 * all with the same list. It has a deadline (at first that of g), an arena and errors of
 * its own, and may be used beside g, and after g has been destroyed. Collectives of
 * several groups may be in flight at once: waiting for one makes progress with all. */
DDP_API struct ddp_group *ddp_group_sub(struct ddp_group *g, const int *ranks, int n,
                                        struct ddp_err *err);
/* All of g call: those of one colour (0 or more) become a group, in the order of `key`,
 * then of their ranks in g. *sub is NULL for a negative colour. */
DDP_API int ddp_group_split(struct ddp_group *g, int colour, int key,
                            struct ddp_group **sub, struct ddp_err *err);

DDP_API int ddp_group_rank(const struct ddp_group *g); /* 0 to size - 1 */
DDP_API int ddp_group_size(const struct ddp_group *g);
/* "shm", "tcp", "shm+tcp", "nccl", "mpi"; static */
DDP_API const char *ddp_group_backend(const struct ddp_group *g);

/* Memory that the ranks of this host share (if there is one only, or with backend "tcp":
 * its own): collectives are done in place, without copies, when all ranks of the host
 * pass a buffer inside it. Zeroed, 64-byte aligned, freed with the group. Any rank may
 * call it alone. The pages are allocated at once, so that a lack of memory is an error
 * here and not a signal later. */
DDP_API void *ddp_arena_alloc(struct ddp_group *g, size_t bytes, struct ddp_err *err);
/* The address, in this process, of the place in the arena of `rank` that `mine` has in
 * this rank's arena. If both have allocated the same sizes in the same order it is the
 * corresponding block. For this rank itself: `mine`. NULL: the rank is on another host,
 * or `mine` is not in the arena. What one rank writes before a barrier (or an all_reduce)
 * others read after it. The memory stays when a rank exits, until the group is
 * destroyed. */
DDP_API void *ddp_arena_of(const struct ddp_group *g, const void *mine, int rank);

/* ---- collectives ----
 *
 * `count` and `counts` are elements. counts[r] is the block of rank r, blocks lie one
 * after the other in rank order; the array is copied. A pointer that only the root uses
 * may be NULL on the others. Buffers are aligned to their type, and those of one call may
 * overlap only where it is said. */

DDP_API int ddp_barrier(struct ddp_group *g, struct ddp_err *err);
/* With a deadline of its own (0: the group's). */
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
 * root's send may be its own block of recv. ddp_gatherv(): `count` of this rank, and the
 * root's `counts` of all. */
DDP_API int ddp_gather(struct ddp_group *g, const void *send, void *recv, size_t count,
                       enum ddp_type type, int root, struct ddp_err *err);
DDP_API int ddp_gatherv(struct ddp_group *g, const void *send, size_t count, void *recv,
                        const size_t *counts, enum ddp_type type, int root,
                        struct ddp_err *err);
/* The root's send holds size*count; rank r gets the r-th block of count. The root's recv
 * may be its own block of send. ddp_scatterv(): likewise. */
DDP_API int ddp_scatter(struct ddp_group *g, const void *send, void *recv, size_t count,
                        enum ddp_type type, int root, struct ddp_err *err);
DDP_API int ddp_scatterv(struct ddp_group *g, const void *send, const size_t *counts,
                         void *recv, size_t count, enum ddp_type type, int root,
                         struct ddp_err *err);
/* `count` elements from each rank; recv holds size*count, in rank order. send may be the
 * rank's own block of recv. */
DDP_API int ddp_all_gather(struct ddp_group *g, const void *send, void *recv,
                           size_t count, enum ddp_type type, struct ddp_err *err);
/* The same counts on every rank: send holds counts[rank], recv their sum. */
DDP_API int ddp_all_gatherv(struct ddp_group *g, const void *send, void *recv,
                            const size_t *counts, enum ddp_type type,
                            struct ddp_err *err);
/* send holds size*count; rank r gets the reduction of all r-th blocks of count.
 * recv may be the rank's own block of send. */
DDP_API int ddp_reduce_scatter(struct ddp_group *g, const void *send, void *recv,
                               size_t count, enum ddp_type type, enum ddp_op op,
                               struct ddp_err *err);
/* The same counts on every rank: send holds their sum, recv counts[rank]. */
DDP_API int ddp_reduce_scatterv(struct ddp_group *g, const void *send, void *recv,
                                const size_t *counts, enum ddp_type type, enum ddp_op op,
                                struct ddp_err *err);
/* My r-th block of send becomes my rank's block of recv on rank r; both hold size*count.
 * ddp_all_to_allv(): send_counts[r] elements go to rank r, recv_counts[r] come from it.
 */
DDP_API int ddp_all_to_all(struct ddp_group *g, const void *send, void *recv,
                           size_t count, enum ddp_type type, struct ddp_err *err);
DDP_API int ddp_all_to_allv(struct ddp_group *g, const void *send,
                            const size_t *send_counts, void *recv,
                            const size_t *recv_counts, enum ddp_type type,
                            struct ddp_err *err);

/* ---- messages ----
 *
 * In order per pair and tag (0..2^31-1). send returns when the buffer can be used again,
 * and may wait for the receive, as MPI_Send() may; recv when `bytes` have arrived (a
 * message of another size breaks the group). A message without a matching receive is kept
 * in memory while one with another tag is awaited from the same rank. Both sides may
 * isend before either receives, at any size.
 */
DDP_API int ddp_send(struct ddp_group *g, const void *buf, size_t bytes, int dest,
                     int tag, struct ddp_err *err);
DDP_API int ddp_recv(struct ddp_group *g, void *buf, size_t bytes, int source, int tag,
                     struct ddp_err *err);
/* From any rank that sends with this tag; *source, which may be NULL, gets its number. A
 * message matches the receive that was posted first, with a source or without. It no
 * longer waits for a rank that has left; one of another host must have exchanged messages
 * with this rank, or it counts as dead. */
DDP_API int ddp_recv_any(struct ddp_group *g, void *buf, size_t bytes, int tag,
                         int *source, struct ddp_err *err);

/* ---- non-blocking ----
 *
 * The buffer belongs to the request until it has ended. Progress is made inside
 * ddp_test(), ddp_wait() and other calls on the group or on groups made from it; there is
 * no thread. Non-blocking collectives of one group run in the order in which they were
 * started. ddp_group_destroy() frees requests that have not ended. */
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
/* *done = 1 when ended; then, and on error, the request is freed. */
DDP_API int ddp_test(struct ddp_request *r, int *done, struct ddp_err *err);
/* Waits until it has ended, and frees it, also on error. */
DDP_API int ddp_wait(struct ddp_request *r, struct ddp_err *err);
/* Wait for at most `ms` milliseconds; *done as in ddp_test(). The group's deadline counts
 * from the first of these calls. */
DDP_API int ddp_wait_for(struct ddp_request *r, int64_t ms, int *done,
                         struct ddp_err *err);
/* For a caller whose own limit of `seconds` has passed: the error names the ranks that
 * the group waits for, as that of the group's deadline does. Nothing is broken. */
DDP_API void ddp_explain_wait(struct ddp_group *g, double seconds, struct ddp_err *err);
/* Cancel a message of which no byte was sent or received: *cancelled = 1, and the request
 * is freed. Otherwise *cancelled = 0 and it continues (as collectives always do). */
DDP_API int ddp_cancel(struct ddp_request *r, int *cancelled, struct ddp_err *err);

#ifdef __cplusplus
}
#endif
#endif
