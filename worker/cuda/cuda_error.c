/* worker/cuda/cuda_error.c - see cuda_error.h */
#include "worker/cuda/cuda_error.h"

#include "common/mem.h"
#include "worker/cuda/kernels.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

int check_cuda(cudaError_t rc, const char *what, struct ddp_err *err)
{
    if (rc == cudaSuccess)
        return 0;
    cudaGetLastError(); /* clears the error, which is reported once */
    return err_set(err, "%s: %s", what, cudaGetErrorString(rc));
}

int check_launches(const char *what, struct ddp_err *err)
{
    char kernel[64];
    int device = 0;
    cudaError_t rc = cudaGetLastError();
    if (!cuda_refused(kernel, sizeof kernel, &device, &rc))
        return check_cuda(rc == cudaErrorNotReady ? cudaSuccess : rc, what, err);
    return err_set(err, "%s: kernel '%s' on GPU %d: %s", what, kernel, device,
                   cudaGetErrorString(rc));
}

int check_blas(cublasStatus_t rc, const char *what, struct ddp_err *err)
{
    if (rc == CUBLAS_STATUS_SUCCESS)
        return 0;
    return err_set(err, "%s: cuBLASLt: %s", what, cublasLtGetStatusString(rc));
}

int check_dnn(cudnnStatus_t rc, const char *what, struct ddp_err *err)
{
    if (rc == CUDNN_STATUS_SUCCESS)
        return 0;
    const char *name = cudnnGetErrorString(rc);
#if CUDNN_MAJOR >= 9 /* the reason, in lines */
    char why[256] = "";
    cudnnGetLastErrorString(why, sizeof why);
    why[strcspn(why, "\n")] = '\0';
    return err_set(err, "%s: cuDNN: %s%s%s", what, name, *why ? ": " : "", why);
#else
    return err_set(err, "%s: cuDNN: %s", what, name);
#endif
}

int stream_follow(cudaStream_t to, cudaStream_t from, cudaEvent_t by, const char *doing,
                  struct ddp_err *err)
{
    TRY(check_cuda(cudaEventRecord(by, from), doing, err));
    return check_cuda(cudaStreamWaitEvent(to, by, 0), doing, err);
}

size_t device_allocated(const struct device_memory *m, const char *what)
{
    size_t sum = 0;
    for (size_t i = 0; i < m->nblocks; i++) {
        if (!what || strcmp(m->blocks[i].what, what) == 0)
            sum += m->blocks[i].bytes;
    }
    return sum;
}

/* "weights 4.6 MiB, activations 900.0 MiB": one entry per name; the caller frees. */
static char *list_taken(const struct device_memory *m)
{
    char *out = xstrdup("");
    for (size_t i = 0; i < m->nblocks; i++) {
        bool first = true;
        for (size_t k = 0; k < i && first; k++)
            first = strcmp(m->blocks[k].what, m->blocks[i].what) != 0;
        if (first)
            xappendf(&out, "%s%s %.1f MiB", i ? ", " : "", m->blocks[i].what,
                     (double)device_allocated(m, m->blocks[i].what) / 0x1p20);
    }
    return out;
}

int device_alloc(struct device_memory *m, const char *what, size_t bytes, void *at,
                 struct ddp_err *err)
{
    void *block = NULL;
    cudaError_t rc = cudaMalloc(&block, bytes ? bytes : 1);
    if (rc == cudaErrorMemoryAllocation) {
        OWNED char *taken = list_taken(m);
        size_t left = 0, all = 0, ours = device_allocated(m, NULL);
        cudaGetLastError();
        cudaMemGetInfo(&left, &all);
        m->full = true;
        size_t others = all > left + ours ? all - left - ours : 0;
        return err_set(err,
                       "no memory on GPU %d for %.1f MiB of %s: of %.1f MiB %.1f are "
                       "free and %.1f taken by CUDA and other programs%s%s",
                       m->device, (double)bytes / 0x1p20, what, (double)all / 0x1p20,
                       (double)left / 0x1p20, (double)others / 0x1p20,
                       m->nblocks ? ", beside our " : "", taken);
    }
    TRY(check_cuda(rc, what, err));
    m->blocks = xrealloc(m->blocks, m->nblocks + 1, sizeof *m->blocks);
    m->blocks[m->nblocks++] = (struct device_block){block, what, bytes};
    memcpy(at, &block, sizeof block);
    return check_cuda(cudaMemset(block, 0, bytes), what, err);
}

void device_free(struct device_memory *m)
{
    for (size_t i = 0; i < m->nblocks; i++)
        cudaFree(m->blocks[i].at);
    free(m->blocks);
    *m = (struct device_memory){.device = m->device};
}

int pinned_alloc(size_t bytes, void *at, struct ddp_err *err)
{
    void *block = NULL;
    cudaError_t rc = cudaMallocHost(&block, bytes);
    if (rc == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        return err_set(err,
                       "the host has no pinned memory for %.1f MiB: look at the job's "
                       "memory limit, and at 'ulimit -l'",
                       (double)bytes / 0x1p20);
    }
    TRY(check_cuda(rc, "pinned memory", err));
    memcpy(at, &block, sizeof block);
    return 0;
}
