/* worker/cuda/resources.c - see resources.h */
#include "worker/cuda/resources.h"

#include "common/mem.h"

#include <stdlib.h>
#include <string.h>

/* Returns `at`; NULL: it could not be made. */
static void *keep(struct resources *r, struct resource made)
{
    if (!made.at)
        return NULL;
    r->all = xrealloc(r->all, r->n + 1, sizeof *r->all);
    r->all[r->n++] = made;
    return made.at;
}

void resources_free(struct resources *r)
{
    while (r->n > 0) {
        void *at = r->all[--r->n].at;
        switch (r->all[r->n].kind) {
        case DEVICE_MEMORY:
            cudaFree(at);
            break;
        case PINNED_MEMORY:
            cudaFreeHost(at);
            break;
        case STREAM:
            cudaStreamDestroy(at);
            break;
        case EVENT:
            cudaEventDestroy(at);
            break;
        }
    }
    free(r->all);
    *r = (struct resources){.device = r->device};
}

size_t device_allocated(const struct resources *r, const char *what)
{
    size_t sum = 0;
    for (size_t i = 0; i < r->n; i++) {
        if (r->all[i].what && (!what || strcmp(r->all[i].what, what) == 0))
            sum += r->all[i].bytes;
    }
    return sum;
}

/* "weights 4.6 MiB, activations 900.0 MiB": one entry per name; the caller frees. */
static char *list_taken(const struct resources *r)
{
    char *out = xstrdup("");
    for (size_t i = 0; i < r->n; i++) {
        const char *what = r->all[i].what;
        bool first = what != NULL;
        for (size_t k = 0; k < i && first; k++)
            first = !r->all[k].what || strcmp(r->all[k].what, what) != 0;
        if (first)
            xappendf(&out, "%s%s %.1f MiB", *out ? ", " : "", what,
                     (double)device_allocated(r, what) / 0x1p20);
    }
    return out;
}

/* Reports an allocation failure, and what uses the device's memory. */
static void fail_full(struct resources *r, const char *what, size_t bytes)
{
    OWNED char *taken = list_taken(r);
    size_t left = 0, all = 0, ours = device_allocated(r, NULL);
    cudaMemGetInfo(&left, &all);
    r->full = true;
    size_t others = all > left + ours ? all - left - ours : 0;
    cuda_fail(
        "no memory on GPU %d for %.1f MiB of %s: of %.1f MiB %.1f are free and %.1f "
        "taken by CUDA and other programs%s%s",
        r->device, (double)bytes / 0x1p20, what, (double)all / 0x1p20,
        (double)left / 0x1p20, (double)others / 0x1p20, *taken ? ", beside our " : "",
        taken);
}

void *device_alloc(struct resources *r, const char *what, size_t bytes)
{
    void *block = NULL;
    cuda_doing("%s", what);
    cudaError_t rc = cuda_failed() ? cudaSuccess : cudaMalloc(&block, bytes ? bytes : 1);
    if (rc == cudaErrorMemoryAllocation)
        fail_full(r, what, bytes);
    cuda_note(rc);
    CUDA(cudaMemset(block, 0, bytes));
    return keep(r, (struct resource){DEVICE_MEMORY, block, what, bytes});
}

void *device_copy(struct resources *r, const char *what, size_t bytes, const void *from)
{
    void *block = device_alloc(r, what, bytes);
    CUDA(cudaMemcpy(block, from, bytes, cudaMemcpyHostToDevice));
    return block;
}

size_t *optim_alloc(struct resources *r, const struct optim *o, size_t floats,
                    float *states[OPTIM_STATES])
{
    const char *what = "optimiser";
    size_t borders = o->nborders * sizeof *o->borders;
    for (int k = 0; k < OPTIM_STATES; k++)
        if (o->states[k])
            states[k] = device_alloc(r, what, floats * sizeof(float));
    return borders > 0 ? device_copy(r, what, borders, o->borders) : NULL;
}

void *pinned_alloc(struct resources *r, size_t bytes)
{
    void *block = NULL;
    cuda_doing("pinned memory");
    cudaError_t rc = cuda_failed() ? cudaSuccess : cudaMallocHost(&block, bytes);
    if (rc == cudaErrorMemoryAllocation)
        cuda_fail("the host has no pinned memory for %.1f MiB: look at the job's memory "
                  "limit, and at 'ulimit -l'",
                  (double)bytes / 0x1p20);
    cuda_note(rc);
    return keep(r, (struct resource){PINNED_MEMORY, block});
}

cudaStream_t stream_make(struct resources *r, bool first)
{
    int low, high;
    cudaStream_t s = NULL;
    CUDA(cudaDeviceGetStreamPriorityRange(&low, &high));
    CUDA(cudaStreamCreateWithPriority(&s, cudaStreamNonBlocking, first ? high : low));
    return keep(r, (struct resource){STREAM, s});
}

cudaEvent_t event_make(struct resources *r, bool timed)
{
    cudaEvent_t e = NULL;
    CUDA(cudaEventCreateWithFlags(&e, timed ? cudaEventDefault : cudaEventDisableTiming));
    return keep(r, (struct resource){EVENT, e});
}

void stream_follow(cudaStream_t to, cudaStream_t from, cudaEvent_t by)
{
    CUDA(cudaEventRecord(by, from));
    CUDA(cudaStreamWaitEvent(to, by, 0));
}
