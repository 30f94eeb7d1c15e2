/* worker/cuda/cuda_error.h - errors of CUDA and its libraries as one line; device
 * memory, the order of streams
 *
 * Each function returns 0, or -1 with `err`: "what: the library's message".
 */
#ifndef WORKER_CUDA_CUDA_ERROR_H
#define WORKER_CUDA_CUDA_ERROR_H

#include "common/err.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>
#include <stdbool.h>
#include <stddef.h>

int check_cuda(cudaError_t rc, const char *what, struct ddp_err *err);
int check_blas(cublasStatus_t rc, const char *what, struct ddp_err *err);
int check_dnn(cudnnStatus_t rc, const char *what, struct ddp_err *err);

/* Fails if a kernel of ours was rejected at launch since the last call: "what: kernel
 * 'finish' on GPU 1: the library's message", for the first one. */
int check_launches(const char *what, struct ddp_err *err);

/* Makes later work on `to` wait for the work now on `from`, by this event. */
int stream_follow(cudaStream_t to, cudaStream_t from, cudaEvent_t by, const char *doing,
                  struct ddp_err *err);

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
int device_alloc(struct device_memory *m, const char *what, size_t bytes, void *at,
                 struct ddp_err *err);
void device_free(struct device_memory *m);
/* Bytes allocated under the name `what`; NULL: all. */
size_t device_allocated(const struct device_memory *m, const char *what);

/* Allocates pinned host memory; the caller frees it with cudaFreeHost(). */
int pinned_alloc(size_t bytes, void *at, struct ddp_err *err);

#endif
