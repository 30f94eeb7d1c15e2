/* A libcuda.so.1 for test_cudnn.c, that knows no device: cuDNN compiles its engines of
 * attention when a plan is built, and wants to load their kernels then. */
#pragma GCC diagnostic ignored "-Wmissing-prototypes"

enum { SUCCESS = 0, NO_DEVICE = 100 };

/* What has to be there, but is not called. */
#define NONE(name)        \
    int name(void)        \
    {                     \
        return NO_DEVICE; \
    }
NONE(cuCtxGetCurrent)
NONE(cuCtxGetLimit)
NONE(cuCtxPopCurrent)
NONE(cuCtxPushCurrent)
NONE(cuDeviceGet)
NONE(cuDriverGetVersion)
NONE(cuGetErrorName)
NONE(cuInit)
NONE(cuKernelGetAttribute)
NONE(cuLaunchCooperativeKernel)
NONE(cuLaunchKernel)
NONE(cuLaunchKernelEx)
NONE(cuLibraryLoadFromFile)
NONE(cuLibraryUnload)
NONE(cuLinkAddData)
NONE(cuLinkComplete)
NONE(cuLinkCreate)
NONE(cuLinkDestroy)
NONE(cuOccupancyMaxPotentialClusterSize)
NONE(cuStreamGetCtx)

int cuDeviceGetCount(int *n)
{
    *n = 0;
    return SUCCESS;
}

int cuGetErrorString(int rc, const char **text)
{
    *text = "no device";
    return SUCCESS;
}

/* The handles are only passed on. */
int cuLibraryLoadData(void **library)
{
    *library = library;
    return SUCCESS;
}

int cuLibraryGetKernel(void **kernel)
{
    *kernel = kernel;
    return SUCCESS;
}

int cuKernelSetAttribute(void)
{
    return SUCCESS;
}
