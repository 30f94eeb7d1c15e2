/* worker/group/backend.h - what moves the data of a group
 *
 * shm: ranks of one host, by shared memory
 * tcp: one rank per host, or when asked for
 * shm+tcp: several hosts with several ranks
 * nccl: CUDA memory, by libnccl
 * mpi: by the MPI library that the job runs under
 *
 * The layout chooses among the first three. A group of nccl or mpi has one of them
 * below it: for barriers, for failure detection (failure_watch.c), and with mpi for
 * messages.
 */
#ifndef WORKER_GROUP_BACKEND_H
#define WORKER_GROUP_BACKEND_H

#include "worker/group/group.h"

struct backend {
    const char *name;
    /* Called after the bootstrap, and at the end. NULL: our own transports. Another
     * library's completions wake no sleeping rank, and a pending request does not tell
     * which ranks it waits for: its groups use failure_watch.c. */
    int (*open)(struct ddp_group *g, struct ddp_err *err);
    void (*close)(struct ddp_group *g);
    /* Advance the first collective: ADVANCE_*; on error `*culprit` is the rank that has
     * gone, or -1. */
    int (*advance)(struct ddp_group *g, struct coll *c, int *culprit,
                   struct ddp_err *err);
    /* Point-to-point messages; NULL: our own (p2p.c). */
    void (*post)(struct ddp_group *g, struct ddp_request *r);
    int (*progress)(struct ddp_group *g, int *culprit, struct ddp_err *err);
    bool (*cancel)(struct ddp_group *g, struct ddp_request *r);
    /* Call tcp_watch() for the peers of messages in flight that are on other hosts; or
     * NULL. */
    void (*watch)(struct ddp_group *g);
    bool on_device; /* takes CUDA memory only */
};

extern const struct backend backend_shm, backend_tcp, backend_hier, backend_nccl,
    backend_mpi;

/* The `advance` of our own three for gather, scatter and all_to_all. */
int alltoall_advance(struct ddp_group *g, struct coll *c, struct ddp_err *err);

/* The one that the layout asks for. */
const struct backend *backend_of_layout(const struct layout *layout);

#endif
