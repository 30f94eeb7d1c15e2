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
struct cuda_api {
    void *library;
    int (*get_attribute)(void *data, int attribute, uint64_t p);
    int (*init)(unsigned flags);
    int (*context)(void **context);
    int (*set_context)(void *context);
    int (*device)(int *device, int number);
    int (*retain)(void **context, int device);
    int (*alloc)(uint64_t *at, size_t bytes);
    int (*free)(uint64_t at);
    int (*copy)(uint64_t to, uint64_t from, size_t bytes, cuda_stream s);
    int (*stream_create)(cuda_stream *s, unsigned flags);
    int (*stream_destroy)(cuda_stream s);
    int (*event_create)(cuda_event *e, unsigned flags);
    int (*event_destroy)(cuda_event e);
    int (*event_record)(cuda_event e, cuda_stream s);
    int (*event_query)(cuda_event e);
    int (*error_name)(int error, const char **name);
};
extern struct cuda_api cuda_api;

/* The numbers of cuda.h. */
enum { CUDA_NOT_READY = 600, CUDA_NON_BLOCKING = 1, CUDA_NO_TIMING = 2 };

/* 0; or -1 with "`what`: " and CUDA's name of the error. */
int cuda_check(int rc, const char *what, struct ddp_err *err);

#endif
