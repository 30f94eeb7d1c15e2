/* worker/group/nccl_impl.h - inside nccl.c and nccl_p2p.c */
#ifndef WORKER_GROUP_NCCL_IMPL_H
#define WORKER_GROUP_NCCL_IMPL_H

#include "common/offload.h"
#include "worker/group/backend.h"
#include "worker/group/cuda.h"

struct nccl_id { /* ncclUniqueId */
    char bytes[128];
};

/* libnccl's functions, found at run time. */
struct nccl_api {
    void *library;
    int (*unique_id)(struct nccl_id *id);
    int (*init)(void **comm, int size, struct nccl_id id, int rank);
    int (*destroy)(void *comm);
    int (*abort)(void *comm);
    int (*async_error)(void *comm, int *error);
    const char *(*error_text)(int error);
    int (*begin)(void);
    int (*end)(void);
    int (*all_reduce)(const void *in, void *out, size_t n, int type, int op, void *comm,
                      cuda_stream s);
    int (*broadcast)(const void *in, void *out, size_t n, int type, int root, void *comm,
                     cuda_stream s);
    int (*reduce)(const void *in, void *out, size_t n, int type, int op, int root,
                  void *comm, cuda_stream s);
    int (*all_gather)(const void *in, void *out, size_t n, int type, void *comm,
                      cuda_stream s);
    int (*reduce_scatter)(const void *in, void *out, size_t n, int type, int op,
                          void *comm, cuda_stream s);
    int (*send)(const void *in, size_t n, int type, int peer, void *comm, cuda_stream s);
    int (*recv)(void *out, size_t n, int type, int peer, void *comm, cuda_stream s);
};
extern struct nccl_api nccl_api;

enum { NCCL_BYTES = 1 }; /* ncclUint8 */

/* A communicator, and the stream that its operations go through. */
struct nccl_queue {
    void *comm;
    cuda_stream stream;
};

struct nccl {
    struct nccl_queue coll;        /* all collectives, in the order they are called */
    struct nccl_channel *channels; /* owned: one for each peer and direction in use */
    cuda_event *events, *idle;     /* owned: all that were made, and those not in use */
    size_t nevents, nidle;
    struct nccl *next; /* among the abandoned: nccl.c */
};

/* 0, or -1 with "`what`: " and NCCL's text. */
int nccl_check(int rc, const char *what, struct ddp_err *err);
/* Record an event for `r` behind what the stream has been given. */
int nccl_mark(struct nccl *n, struct ddp_request *r, cuda_stream s, struct ddp_err *err);
/* 1: the event of `r` has passed, and is free for others; 0: not yet; -1: it failed, or
 * the communicator did (NULL: none is used). */
int nccl_passed(struct nccl *n, struct ddp_request *r, void *comm, struct ddp_err *err);
/* Destroy or abort the communicator in a thread of its own, since either may wait for
 * ever; offload_end() is the caller's. NULL: there was none, or no thread. */
struct offload *nccl_end(struct nccl_queue *q, bool abort);

/* Point-to-point messages: nccl_p2p.c. */
void nccl_p2p_post(struct ddp_group *g, struct ddp_request *r);
int nccl_p2p_progress(struct ddp_group *g, struct ddp_err *err);
bool nccl_p2p_cancel(struct ddp_group *g, struct ddp_request *r);
void nccl_p2p_watch(struct ddp_group *g);
/* All channels; false: one of them still waited at `deadline_ms`, and what it uses is
 * left as it is. */
bool nccl_p2p_close(struct nccl *n, bool abort, int64_t deadline_ms);

#endif
