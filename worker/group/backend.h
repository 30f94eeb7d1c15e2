/* worker/group/backend.h - who moves the data of a group
 *
 *   shm       ranks of one host, through memory that they share
 *   tcp       one rank per host, or ranks that shall use sockets
 *   shm+tcp   several hosts with several ranks
 *   nccl      CUDA memory, by libnccl
 *   mpi       by the MPI library that the job runs under
 *
 * The first three are chosen by the layout. A group of nccl or mpi has one of them below
 * it: for barriers, to hear who has died or calls something else (watch.h), and under mpi
 * for messages.
 */
#ifndef WORKER_GROUP_BACKEND_H
#define WORKER_GROUP_BACKEND_H

#include "worker/group/group.h"

struct backend {
    const char *name;
    /* After the group has met (NULL: nothing to do), and at its end. */
    int (*open)(struct ddp_group *g, struct ddp_err *err);
    void (*close)(struct ddp_group *g);
    /* The first collective: ADVANCE_*; on error `*culprit` is the rank that has gone, or
     * -1. */
    int (*advance)(struct ddp_group *g, struct coll *c, int *culprit,
                   struct ddp_err *err);
    /* Messages; NULL: streams of our own (messages.h). */
    void (*post)(struct ddp_group *g, struct ddp_request *r);
    int (*progress)(struct ddp_group *g, int *culprit, struct ddp_err *err);
    bool (*cancel)(struct ddp_group *g, struct ddp_request *r);
    /* Messages under way: tcp_watch() whom they are with, on other hosts; or NULL. */
    void (*watch)(struct ddp_group *g);
    bool on_device; /* takes CUDA memory, and no other */
    bool sleepless; /* what it waits for does not wake us, nor can we see of whom */
};

extern const struct backend backend_shm, backend_tcp, backend_hier, backend_nccl,
    backend_mpi;

/* The one that the layout asks for. */
const struct backend *backend_of_layout(const struct layout *layout);

/* For open(): a call by which the ranks of somebody else's library meet, and which knows
 * no deadline. It runs in a thread of its own, call(copy of arg); what it has made of the
 * copy is in `arg` afterwards. -1: `what` has not ended by the group's deadline (`hint`:
 * what to look at), or another rank has died or failed; then the call goes on for as long
 * as it likes. */
int backend_aside(struct ddp_group *g, void (*call)(void *copy), void *arg, size_t bytes,
                  const char *what, const char *hint, struct ddp_err *err);

#endif
