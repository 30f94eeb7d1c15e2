/* worker/gpu/libcuda.h - the functions of CUDA's driver that we need, found at run
 * time
 *
 * Not linked: on a machine without a GPU, and in a process that does not use it,
 * libcuda is not loaded. The types and numbers are those of cuda.h, whose ABI is
 * stable.
 */
#ifndef WORKER_GPU_LIBCUDA_H
#define WORKER_GPU_LIBCUDA_H

#include "include/ddprun/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct CUstream_st *cuda_stream;
typedef struct CUevent_st *cuda_event;

/* Does the pointer refer to memory that only a GPU can access? False until libcuda has
 * been loaded into this process. */
bool cuda_is_device(const void *p);

/* Loads libcuda and uses the calling thread's context, or else that of device
 * `device`. */
int cuda_open(int device, struct ddp_err *err);
/* Returns the calling thread's context (NULL: none, or cuda_open() was not called).
 * The second sets it in another thread; NULL does nothing. */
void *cuda_context(void);
void cuda_use_context(void *context);

/* libcuda's functions, there after cuda_open(); for their results: cuda_check(). */
#define CUDA_FUNCTIONS(F)                                                           \
    F(cuPointerGetAttribute, get_attribute, (void *data, int attribute, uint64_t))  \
    F(cuInit, init, (unsigned flags))                                               \
    F(cuCtxGetCurrent, context, (void **context))                                   \
    F(cuCtxSetCurrent, set_context, (void *context))                                \
    F(cuDeviceGet, device, (int *device, int number))                               \
    F(cuDevicePrimaryCtxRetain, retain, (void **context, int device))               \
    F(cuMemAlloc_v2, alloc, (uint64_t *, size_t bytes))                             \
    F(cuMemFree_v2, free, (uint64_t at))                                            \
    F(cuMemcpyAsync, copy, (uint64_t to, uint64_t from, size_t bytes, cuda_stream)) \
    F(cuStreamCreate, stream_create, (cuda_stream *, unsigned flags))               \
    F(cuStreamDestroy_v2, stream_destroy, (cuda_stream))                            \
    F(cuEventCreate, event_create, (cuda_event *, unsigned flags))                  \
    F(cuEventDestroy_v2, event_destroy, (cuda_event))                               \
    F(cuEventRecord, event_record, (cuda_event, cuda_stream))                       \
    F(cuEventQuery, event_query, (cuda_event))                                      \
    F(cuGetErrorName, error_name, (int error, const char **name))

#define CUDA_MEMBER(symbol, name, parameters) int(*name) parameters;
extern struct cuda_api {
    void *library;
    CUDA_FUNCTIONS(CUDA_MEMBER)
} cuda_api;

/* The numbers of cuda.h. */
enum { CUDA_NOT_READY = 600, CUDA_NON_BLOCKING = 1, CUDA_NO_TIMING = 2 };

/* 0; or -1 with "`what`: " and CUDA's name of the error. */
int cuda_check(int rc, const char *what, struct ddp_err *err);

#endif
