/* tests/worker/fake_cuda.c - a libcuda without a GPU, for the tests of the nccl backend
 *
 * "Device memory" is memory that is remembered to be such. Streams and events end at
 * once, but an event says so only when it is asked the second time: whoever does not ask
 * again would read too early on a real one. */
#include <stdint.h>
#include <stdlib.h>

#define FAKE __attribute__((visibility("default")))

enum { MEMORY_TYPE = 2, DEVICE = 2, INVALID = 1, NOT_READY = 600, ROOM = 256 };

static struct {
    uint64_t at;
    size_t bytes;
} blocks[ROOM];
static int nblocks;

FAKE int cuMemAlloc_v2(uint64_t *at, size_t bytes);
FAKE int cuPointerGetAttribute(void *data, int attribute, uint64_t p);
FAKE int cuInit(unsigned flags);
FAKE int cuCtxGetCurrent(void **context);
FAKE int cuCtxSetCurrent(void *context);
FAKE int cuDeviceGet(int *device, int number);
FAKE int cuDevicePrimaryCtxRetain(void **context, int device);
FAKE int cuStreamCreate(void **s, unsigned flags);
FAKE int cuStreamDestroy_v2(void *s);
FAKE int cuEventCreate(int **e, unsigned flags);
FAKE int cuEventDestroy_v2(int *e);
FAKE int cuEventRecord(int *e, void *s);
FAKE int cuEventQuery(int *e);
FAKE int cuGetErrorName(int error, const char **name);

int cuMemAlloc_v2(uint64_t *at, size_t bytes)
{
    void *p = nblocks < ROOM ? calloc(1, bytes + 1) : NULL;
    if (!p)
        return INVALID;
    *at = (uint64_t)(uintptr_t)p;
    blocks[nblocks].at = *at;
    blocks[nblocks++].bytes = bytes;
    return 0;
}

int cuPointerGetAttribute(void *data, int attribute, uint64_t p)
{
    for (int i = 0; i < nblocks; i++) {
        if (p >= blocks[i].at && p < blocks[i].at + blocks[i].bytes) {
            *(int *)data = attribute == MEMORY_TYPE ? DEVICE : 0;
            return 0;
        }
    }
    return INVALID; /* as it is for memory that CUDA does not know */
}

int cuInit(unsigned flags)
{
    return 0;
}

int cuCtxGetCurrent(void **context)
{
    *context = NULL;
    return 0;
}

int cuCtxSetCurrent(void *context)
{
    return context ? 0 : INVALID;
}

int cuDeviceGet(int *device, int number)
{
    *device = number;
    return number < 16 ? 0 : INVALID;
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
    static int some;
    *context = &some;
    return 0;
}

int cuStreamCreate(void **s, unsigned flags)
{
    *s = malloc(1);
    return 0;
}

int cuStreamDestroy_v2(void *s)
{
    free(s);
    return 0;
}

int cuEventCreate(int **e, unsigned flags)
{
    *e = calloc(1, sizeof **e);
    return 0;
}

int cuEventDestroy_v2(int *e)
{
    free(e);
    return 0;
}

int cuEventRecord(int *e, void *s)
{
    *e = 1;
    return 0;
}

int cuEventQuery(int *e)
{
    return (*e)-- > 0 ? NOT_READY : 0;
}

int cuGetErrorName(int error, const char **name)
{
    *name = error == INVALID ? "CUDA_ERROR_INVALID_VALUE" : "CUDA_ERROR";
    return 0;
}
