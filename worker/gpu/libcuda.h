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
int cuda_stream_create(cuda_stream *s, struct ddp_err *err);
int cuda_event_create(cuda_event *e, struct ddp_err *err);
void cuda_stream_destroy(cuda_stream s);
void cuda_event_destroy(cuda_event e);
int cuda_event_record(cuda_event e, cuda_stream s, struct ddp_err *err);
/* Device memory; `at` is 0 if there is none. */
int cuda_memory_create(uint64_t *at, size_t bytes, struct ddp_err *err);
void cuda_memory_destroy(uint64_t at);
/* Queued on the stream; the device can access both addresses. */
int cuda_copy(void *to, const void *from, size_t bytes, cuda_stream s,
              struct ddp_err *err);
/* 1: all earlier work on the stream is done; 0: not yet; -1: error. */
int cuda_event_done(cuda_event e, struct ddp_err *err);

#endif
