/* worker/cuda/launch.cu - see kernels.h: the first kernel that was rejected
 *
 * CUDA keeps a launch's error until it is asked for, but not the kernel's name.
 */
#include "worker/cuda/device.h"

#include <string.h>

static __thread struct {
    char kernel[64];
    int device;
    cudaError_t rc;
} refused;

void cuda_launched(const char *kernel)
{
    cudaError_t rc = refused.rc ? cudaSuccess : cudaPeekAtLastError();
    if (rc == cudaSuccess || rc == cudaErrorNotReady) /* of the program's own query */
        return;
    kernel += *kernel == '('; /* "(pool<T, V>)": only the name */
    size_t n = strcspn(kernel, "<)");
    n = n < sizeof refused.kernel ? n : sizeof refused.kernel - 1;
    memcpy(refused.kernel, kernel, n);
    refused.kernel[n] = '\0';
    cudaGetDevice(&refused.device);
    refused.rc = rc;
}

bool cuda_refused(char *kernel, size_t size, int *device, cudaError_t *rc)
{
    if (refused.rc == cudaSuccess)
        return false;
    size_t n = strnlen(refused.kernel, size - 1);
    memcpy(kernel, refused.kernel, n);
    kernel[n] = '\0';
    *device = refused.device;
    *rc = refused.rc;
    refused.rc = cudaSuccess;
    return true;
}
