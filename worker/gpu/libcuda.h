/* worker/gpu/libcuda.h - the few calls of CUDA's driver that we need, found at run time
 *
 * Nothing here is linked: on a machine without a GPU, and in a process that does not use
 * it, there is no libcuda. The types and numbers are those of cuda.h, which say
 * themselves that they stay as they are.
 */
#ifndef WORKER_GPU_LIBCUDA_H
#define WORKER_GPU_LIBCUDA_H

#include "include/ddprun/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct CUstream_st *cuda_stream;
typedef struct CUevent_st *cuda_event;

/* Does the pointer lead to memory that only a GPU can read? False until libcuda has
 * been loaded into this process. */
bool cuda_is_device(const void *p);

/* Load libcuda; a context of the calling thread is used, or that of device `device`. */
int cuda_open(int device, struct ddp_err *err);
/* The context of the calling thread (NULL: none, or cuda_open() was not called); in
 * another thread, to use the same (NULL: as is). */
void *cuda_context(void);
void cuda_use_context(void *context);
int cuda_stream_create(cuda_stream *s, struct ddp_err *err);
int cuda_event_create(cuda_event *e, struct ddp_err *err);
void cuda_stream_destroy(cuda_stream s);
void cuda_event_destroy(cuda_event e);
int cuda_event_record(cuda_event e, cuda_stream s, struct ddp_err *err);
/* Device memory; `at` is 0 where there is none. */
int cuda_memory_create(uint64_t *at, size_t bytes, struct ddp_err *err);
void cuda_memory_destroy(uint64_t at);
/* Queued on the stream; both are memory that the device reaches. */
int cuda_copy(void *to, const void *from, size_t bytes, cuda_stream s,
              struct ddp_err *err);
/* 1: everything before it is done; 0: not yet; -1. */
int cuda_event_done(cuda_event e, struct ddp_err *err);

#endif
