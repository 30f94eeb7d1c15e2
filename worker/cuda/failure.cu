/* worker/cuda/failure.cu - see failure.h */
#include "worker/cuda/failure.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static __thread struct {
    char doing[80];
    bool failed;
    struct ddp_err first;
} phase;

void cuda_doing(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(phase.doing, sizeof phase.doing, fmt, ap);
    va_end(ap);
}

const char *cuda_doing_now(void)
{
    return phase.doing;
}

bool cuda_failed(void)
{
    return phase.failed;
}

void cuda_fail(const char *fmt, ...)
{
    if (phase.failed)
        return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(phase.first.text, sizeof phase.first.text, fmt, ap);
    va_end(ap);
    phase.failed = true;
}

bool cuda_note(cudaError_t rc)
{
    if (rc != cudaSuccess) {
        cudaGetLastError(); /* clears the error, which is reported once */
        cuda_fail("%s: %s", phase.doing, cudaGetErrorString(rc));
    }
    return !phase.failed;
}

int cuda_outcome(struct ddp_err *err)
{
    if (!phase.failed)
        return 0;
    if (err)
        *err = phase.first;
    phase.failed = false;
    return -1;
}

void cuda_launched(const char *kernel)
{
    int device = 0;
    cudaError_t rc = cudaPeekAtLastError();
    if (rc == cudaSuccess || rc == cudaErrorNotReady) /* of the program's own query */
        return;
    cudaGetLastError();
    cudaGetDevice(&device);
    /* the name of "finish", "(pool<T, V>)", "(channels_walk<V, bias_relu<T, V>>)" */
    const char *end = strrchr(kernel, '<'), *name = end ? end : kernel;
    while (name > kernel && (isalnum((unsigned char)name[-1]) || name[-1] == '_'))
        name--;
    cuda_fail("%s: kernel '%.*s' on GPU %d: %s", phase.doing,
              end ? (int)(end - name) : (int)strlen(name), name, device,
              cudaGetErrorString(rc));
}
