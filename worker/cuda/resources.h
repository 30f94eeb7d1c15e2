/* worker/cuda/resources.h - device and pinned memory, streams and events; the errors of
 * CUDA's libraries
 *
 * Failures are failure.h's: a constructor returns NULL then.
 */
#ifndef WORKER_CUDA_RESOURCES_H
#define WORKER_CUDA_RESOURCES_H

#include "worker/cuda/failure.h"

#include <cublasLt.h>
#include <cudnn.h>
#include <stddef.h>

/* As CUDA(). */
#define BLAS(call) blas_note(cuda_failed() ? CUBLAS_STATUS_SUCCESS : (call))
#define DNN(call)  dnn_note(cuda_failed() ? CUDNN_STATUS_SUCCESS : (call))
bool blas_note(cublasStatus_t rc);
bool dnn_note(cudnnStatus_t rc);

/* `first`: its kernels have priority; `timed`: see cudaEventElapsedTime(). To free them,
 * NULL is allowed. */
cudaStream_t stream_new(bool first);
cudaEvent_t event_new(bool timed);
void stream_free(cudaStream_t stream);
void event_free(cudaEvent_t event);

/* Makes later work on `to` wait for the work now on `from`, by this event. */
void stream_follow(cudaStream_t to, cudaStream_t from, cudaEvent_t by);

/* The engine's allocations on a device, in order. */
struct device_memory {
    int device; /* its number, for the error */
    struct device_block {
        void *at;
        const char *what; /* borrowed: "activations" */
        size_t bytes;
    } * blocks; /* owned */
    size_t nblocks;
    bool full; /* an allocation failed for lack of memory */
};

/* Allocates zeroed memory on the current device, which is m's; device_free() frees all
 * of it. If there is too little, the error names the device, our allocations and the
 * memory of others. */
void *device_alloc(struct device_memory *m, const char *what, size_t bytes);
void device_free(struct device_memory *m);
/* Bytes allocated under the name `what`; NULL: all. */
size_t device_allocated(const struct device_memory *m, const char *what);

/* Allocates pinned host memory; the caller frees it with cudaFreeHost(). */
void *pinned_alloc(size_t bytes);

#endif
