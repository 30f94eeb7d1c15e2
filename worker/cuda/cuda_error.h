/* worker/cuda/cuda_error.h - what CUDA and its libraries say went wrong, as one line
 *
 * Each returns 0, or -1 with `err`: "what: the library's words".
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

/* None of our kernels that were put on streams since the last call was refused; else
 * "what: kernel 'finish' on GPU 1: the library's words", of the first. */
int check_launches(const char *what, struct ddp_err *err);

/* What an engine has taken of a device's memory, in the order in which it did. */
struct device_memory {
    int device; /* its number, for the error */
    struct device_block {
        void *at;
        const char *what; /* borrowed: "activations" */
        size_t bytes;
    } * blocks; /* owned */
    size_t nblocks;
    bool full; /* something did not fit */
};

/* Zeroed memory of the current device, which is m's, freed with all the rest. Without
 * free memory the error names the device, and the memory taken by us and by others. */
int device_alloc(struct device_memory *m, const char *what, size_t bytes, void *at,
                 struct ddp_err *err);
void device_free(struct device_memory *m);
/* All of it, in bytes, that is called `what`; NULL: everything. */
size_t device_allocated(const struct device_memory *m, const char *what);

/* Pinned memory of the host; owner: the caller, until cudaFreeHost(). */
int pinned_alloc(size_t bytes, void *at, struct ddp_err *err);

#endif
