/* worker/cuda/resources.c - see resources.h */
#include "worker/cuda/resources.h"

#include "common/mem.h"

#include <stdlib.h>
#include <string.h>

bool blas_note(cublasStatus_t rc)
{
    if (rc != CUBLAS_STATUS_SUCCESS)
        cuda_fail("%s: cuBLASLt: %s", cuda_done_what(), cublasLtGetStatusString(rc));
    return !cuda_failed();
}

bool dnn_note(cudnnStatus_t rc)
{
    char why[256] = "";
    if (rc == CUDNN_STATUS_SUCCESS)
        return !cuda_failed();
#if CUDNN_MAJOR >= 9 /* the reason, in lines */
    cudnnGetLastErrorString(why, sizeof why);
    why[strcspn(why, "\n")] = '\0';
#endif
    cuda_fail("%s: cuDNN: %s%s%s", cuda_done_what(), cudnnGetErrorString(rc),
              *why ? ": " : "", why);
    return false;
}

cudaStream_t stream_new(bool first)
{
    int low, high;
    cudaStream_t s = NULL;
    CUDA(cudaDeviceGetStreamPriorityRange(&low, &high));
    CUDA(cudaStreamCreateWithPriority(&s, cudaStreamNonBlocking, first ? high : low));
    return s;
}

cudaEvent_t event_new(bool timed)
{
    cudaEvent_t e = NULL;
    CUDA(cudaEventCreateWithFlags(&e, timed ? cudaEventDefault : cudaEventDisableTiming));
    return e;
}

void stream_free(cudaStream_t stream)
{
    if (stream)
        cudaStreamDestroy(stream);
}

void event_free(cudaEvent_t event)
{
    if (event)
        cudaEventDestroy(event);
}

void stream_follow(cudaStream_t to, cudaStream_t from, cudaEvent_t by)
{
    CUDA(cudaEventRecord(by, from));
    CUDA(cudaStreamWaitEvent(to, by, 0));
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

/* Tells who has the memory. */
static void fail_full(struct device_memory *m, const char *what, size_t bytes)
{
    OWNED char *taken = list_taken(m);
    size_t left = 0, all = 0, ours = device_allocated(m, NULL);
    cudaMemGetInfo(&left, &all);
    m->full = true;
    size_t others = all > left + ours ? all - left - ours : 0;
    cuda_fail(
        "no memory on GPU %d for %.1f MiB of %s: of %.1f MiB %.1f are free and %.1f "
        "taken by CUDA and other programs%s%s",
        m->device, (double)bytes / 0x1p20, what, (double)all / 0x1p20,
        (double)left / 0x1p20, (double)others / 0x1p20, m->nblocks ? ", beside our " : "",
        taken);
}

void *device_alloc(struct device_memory *m, const char *what, size_t bytes)
{
    void *block = NULL;
    cuda_doing("%s", what);
    cudaError_t rc = cuda_failed() ? cudaSuccess : cudaMalloc(&block, bytes ? bytes : 1);
    if (rc == cudaErrorMemoryAllocation)
        fail_full(m, what, bytes);
    if (!cuda_note(rc))
        return NULL;
    m->blocks = xrealloc(m->blocks, m->nblocks + 1, sizeof *m->blocks);
    m->blocks[m->nblocks++] = (struct device_block){block, what, bytes};
    CUDA(cudaMemset(block, 0, bytes));
    return block;
}

void device_free(struct device_memory *m)
{
    for (size_t i = 0; i < m->nblocks; i++)
        cudaFree(m->blocks[i].at);
    free(m->blocks);
    *m = (struct device_memory){.device = m->device};
}

void *pinned_alloc(size_t bytes)
{
    void *block = NULL;
    cuda_doing("pinned memory");
    cudaError_t rc = cuda_failed() ? cudaSuccess : cudaMallocHost(&block, bytes);
    if (rc == cudaErrorMemoryAllocation)
        cuda_fail("the host has no pinned memory for %.1f MiB: look at the job's memory "
                  "limit, and at 'ulimit -l'",
                  (double)bytes / 0x1p20);
    cuda_note(rc);
    return block;
}
