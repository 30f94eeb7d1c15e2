/* include/ddprun/group.h - process groups: what the ranks of a job say to each other
 *
 * A group is an ordered set of ranks that meet through the store (store.h). Every member
 * makes the same collective calls in the same order. Ranks of one host talk through
 * shared memory, ranks of different hosts over TCP; collectives over several hosts are
 * done first within and then between hosts.
 *
 * The same bits arrive on every rank, and the same bits from run to run for the same
 * number of ranks, layout over hosts and size: the order of the sum is fixed by rank.
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
 * place, without copies. Every rank allocates the same sizes in the same order. Zeroed,
 * 64-byte aligned, freed with the group. */
DDP_API void *ddp_arena_alloc(struct ddp_group *g, size_t bytes, struct ddp_err *err);

DDP_API int ddp_barrier(struct ddp_group *g, struct ddp_err *err);
DDP_API int ddp_broadcast(struct ddp_group *g, void *buf, size_t count,
                          enum ddp_type type, int root, struct ddp_err *err);
/* In place: buf holds each rank's contribution, then everybody's result. */
DDP_API int ddp_all_reduce(struct ddp_group *g, void *buf, size_t count,
                           enum ddp_type type, enum ddp_op op, struct ddp_err *err);
/* `count` elements from each rank; recv holds size*count, in rank order. */
DDP_API int ddp_all_gather(struct ddp_group *g, const void *send, void *recv,
                           size_t count, enum ddp_type type, struct ddp_err *err);
/* send holds size*count; rank r gets the reduction of everybody's r-th block of count. */
DDP_API int ddp_reduce_scatter(struct ddp_group *g, const void *send, void *recv,
                               size_t count, enum ddp_type type, enum ddp_op op,
                               struct ddp_err *err);

/* Point to point, in order per pair and tag (0..2^31-1). send returns when the buffer can
 * be used again; recv when `bytes` have come (a message of another size is an error). */
DDP_API int ddp_send(struct ddp_group *g, const void *buf, size_t bytes, int dest,
                     int tag, struct ddp_err *err);
DDP_API int ddp_recv(struct ddp_group *g, void *buf, size_t bytes, int source, int tag,
                     struct ddp_err *err);

/* Without waiting: the buffer belongs to the request until it has ended. Progress is made
 * inside ddp_test(), ddp_wait() and other calls on the group; there is no thread.
 * Non-blocking collectives of one group run in the order in which they were started. */
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
