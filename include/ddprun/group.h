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
 *                               lower host's operand on the left
 *     between hosts, longer     a ring: slice i of n starts at host i and is folded once
 *                               around
 * Sums are made in the type itself; integers wrap around. DDP_AVG divides the sum at the
 * end (integers: towards zero). DDP_MAX and DDP_MIN give NaN when an operand is NaN.
 *
 * ddp_barrier() returns only when every member has entered it; the others promise no more
 * than their result. When a rank dies, every pending and later call on all others fails
 * with the same error, which names it; when the deadline passes, with one that names who
 * has not come. Errors of arguments alone ("root 9 in a group of 2") leave the group
 * whole.
 *
 * Calls return 0, or -1 with `err` filled. Every call has the group's deadline. After an
 * error the group is broken: every later call fails at once with the first error, and
 * ddp_group_destroy() is clean. One thread at a time per group.
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

enum ddp_type { DDP_F32, DDP_F64, DDP_I32, DDP_I64, DDP_U8 };
enum ddp_op { DDP_SUM, DDP_PRODUCT, DDP_MAX, DDP_MIN, DDP_AVG };

struct ddp_group_options {
    int rank, size;          /* -1, 0: from the environment (RANK, WORLD_SIZE, ...) */
    const char *master_addr; /* NULL: MASTER_ADDR */
    int master_port;         /* 0: MASTER_PORT */
    const char *name;        /* key prefix in the store; NULL: "ddp" */
    int64_t timeout_ms;      /* 0: 5 minutes */
    size_t arena_bytes;  /* room for ddp_arena_alloc(); 0: 64 MiB, reserved not used */
    const char *backend; /* NULL: choose; "tcp": sockets also within a host */
};

/* Environment: RANK and WORLD_SIZE, or the variables of Open MPI, Hydra, Slurm, PALS or
 * Flux; MASTER_ADDR and MASTER_PORT; GLOO_SOCKET_IFNAME, the interface that other hosts
 * reach this one by (default: the one towards MASTER_ADDR); DDP_HOST_ID, to part what
 * looks like one host but is not, e.g. machines cloned from one snapshot. */

/* NULL options: everything from the environment. Without RANK and WORLD_SIZE, or with
 * size 1, a group of one that needs no store. */
DDP_API struct ddp_group *ddp_group_init(const struct ddp_group_options *options,
                                         struct ddp_err *err);
DDP_API void ddp_group_destroy(struct ddp_group *g); /* NULL is fine */

DDP_API int ddp_group_rank(const struct ddp_group *g);
DDP_API int ddp_group_size(const struct ddp_group *g);
DDP_API const char *
ddp_group_backend(const struct ddp_group *g); /* "shm", "tcp", "shm+tcp" */

/* Memory that the ranks of this host share: collectives on buffers inside it are done in
 * place, without copies, when all ranks of the host give such a buffer. Zeroed, 64-byte
 * aligned, freed with the group. The pages are taken at once, so that a lack of memory is
 * an error here and not a signal later. */
DDP_API void *ddp_arena_alloc(struct ddp_group *g, size_t bytes, struct ddp_err *err);

DDP_API int ddp_barrier(struct ddp_group *g, struct ddp_err *err);
DDP_API int ddp_broadcast(struct ddp_group *g, void *buf, size_t count,
                          enum ddp_type type, int root, struct ddp_err *err);
/* In place: buf holds each rank's contribution, then everybody's result. */
DDP_API int ddp_all_reduce(struct ddp_group *g, void *buf, size_t count,
                           enum ddp_type type, enum ddp_op op, struct ddp_err *err);
/* `count` elements from each rank; recv holds size*count, in rank order. send may be the
 * rank's own block of recv. */
DDP_API int ddp_all_gather(struct ddp_group *g, const void *send, void *recv,
                           size_t count, enum ddp_type type, struct ddp_err *err);
/* send holds size*count; rank r gets the reduction of everybody's r-th block of count.
 * recv may be the rank's own block of send. */
DDP_API int ddp_reduce_scatter(struct ddp_group *g, const void *send, void *recv,
                               size_t count, enum ddp_type type, enum ddp_op op,
                               struct ddp_err *err);

/* Point to point, in order per pair and tag (0..2^31-1). send returns when the buffer can
 * be used again; recv when `bytes` have come (a message of another size breaks the
 * group). A message that comes before its tag is asked for is kept in memory while one
 * with another tag is awaited from the same rank. Both sides may isend before either
 * receives, at any size. */
DDP_API int ddp_send(struct ddp_group *g, const void *buf, size_t bytes, int dest,
                     int tag, struct ddp_err *err);
DDP_API int ddp_recv(struct ddp_group *g, void *buf, size_t bytes, int source, int tag,
                     struct ddp_err *err);

/* Without waiting: the buffer belongs to the request until it has ended. Progress is made
 * inside ddp_test(), ddp_wait() and other calls on the group; there is no thread.
 * Non-blocking collectives of one group run in the order in which they were started. What
 * has not been tested or waited for to its end goes with the group. */
DDP_API struct ddp_request *ddp_isend(struct ddp_group *g, const void *buf, size_t bytes,
                                      int dest, int tag, struct ddp_err *err);
DDP_API struct ddp_request *ddp_irecv(struct ddp_group *g, void *buf, size_t bytes,
                                      int source, int tag, struct ddp_err *err);
DDP_API struct ddp_request *ddp_iall_reduce(struct ddp_group *g, void *buf, size_t count,
                                            enum ddp_type type, enum ddp_op op,
                                            struct ddp_err *err);
/* *done = 1 when ended; then, and on error, the request is gone. */
DDP_API int ddp_test(struct ddp_request *r, int *done, struct ddp_err *err);
DDP_API int ddp_wait(struct ddp_request *r, struct ddp_err *err);

#ifdef __cplusplus
}
#endif
#endif
