/* worker/gpu/libnccl.h - libnccl, found at run time
 *
 * One table of functions in a process, or in the engine's module.
 */
#ifndef WORKER_GPU_LIBNCCL_H
#define WORKER_GPU_LIBNCCL_H

#include "common/offload.h"
#include "include/ddprun/group.h"
#include "worker/gpu/libcuda.h"

struct nccl_id { /* ncclUniqueId */
    char bytes[128];
};

/* libnccl's functions, found at run time. */
#define NCCL_FUNCTIONS(F)                                                               \
    F(int, GetVersion, version, (int *version))                                         \
    F(int, GetUniqueId, unique_id, (struct nccl_id *))                                  \
    F(int, CommInitRank, init, (void **comm, int size, struct nccl_id id, int rank))    \
    F(int, CommDestroy, destroy, (void *comm))                                          \
    F(int, CommAbort, abort, (void *comm))                                              \
    F(int, CommGetAsyncError, async_error, (void *comm, int *error))                    \
    F(const char *, GetErrorString, error_text, (int error))                            \
    F(int, GroupStart, begin, (void))                                                   \
    F(int, GroupEnd, end, (void))                                                       \
    F(int, AllReduce, all_reduce,                                                       \
      (const void *in, void *out, size_t n, int type, int op, void *comm, cuda_stream)) \
    F(int, Broadcast, broadcast,                                                        \
      (const void *in, void *out, size_t n, int type, int root, void *comm,             \
       cuda_stream))                                                                    \
    F(int, Reduce, reduce,                                                              \
      (const void *in, void *out, size_t n, int type, int op, int root, void *comm,     \
       cuda_stream))                                                                    \
    F(int, AllGather, all_gather,                                                       \
      (const void *in, void *out, size_t n, int type, void *comm, cuda_stream))         \
    F(int, ReduceScatter, reduce_scatter,                                               \
      (const void *in, void *out, size_t n, int type, int op, void *comm, cuda_stream)) \
    F(int, Send, send,                                                                  \
      (const void *in, size_t n, int type, int peer, void *comm, cuda_stream))          \
    F(int, Recv, recv, (void *out, size_t n, int type, int peer, void *comm, cuda_stream))

#define NCCL_MEMBER(type, symbol, name, parameters) type(*name) parameters;
extern struct nccl_api {
    void *library;
    char name[24]; /* "NCCL 2.28.9" */
    int number;    /* 22809 */
    NCCL_FUNCTIONS(NCCL_MEMBER)
    const char *(*last_error)(void *comm); /* NULL: older than NCCL 2.13 */
} nccl_api;

/* The numbers of nccl.h. */
enum { NCCL_BYTES = 1 /* ncclUint8 */, NCCL_IN_PROGRESS = 7 };
extern const int nccl_types[]; /* by enum ddp_type */
extern const int nccl_ops[];   /* by enum ddp_op; -1: NCCL has none */

int nccl_load(struct ddp_err *err);

/* 0, also if the operation is in progress; else -1 with "`what`: " and NCCL's message. */
int nccl_check(int rc, const char *what, struct ddp_err *err);
/* Destroys or aborts the communicator in a thread of its own, since either may block
 * for ever, and sets *comm to NULL; the caller calls offload_end(). NULL: no
 * communicator, or no thread could be created. */
struct offload *nccl_end(void **comm, bool abort);

#endif
