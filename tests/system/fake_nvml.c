/* fake_nvml.c - libnvidia-ml.so.1 of a machine with two GPUs, one of which does not answer
 * for its utilization, and is lost when the file FAKE_NVML_LOST is there; the shapes are those
 * of NVIDIA's nvml.h */
#include <stdlib.h>
#include <unistd.h>

int nvmlInit_v2(void);
int nvmlDeviceGetCount_v2(unsigned *n);
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device);
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device);
int nvmlDeviceGetUtilizationRates(void *device, unsigned percent[2]);
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long bytes[3]);

static int gpus[2];

int nvmlInit_v2(void)
{
    return 0;
}

int nvmlDeviceGetCount_v2(unsigned *n)
{
    *n = 2;
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
    enum { INVALID = 2, GPU_IS_LOST = 15 };
    const char *lost = getenv("FAKE_NVML_LOST");
    if (index > 1)
        return INVALID;
    *device = &gpus[index];
    return index == 1 && lost && access(lost, F_OK) == 0 ? GPU_IS_LOST : 0;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device)
{
    return nvmlDeviceGetHandleByIndex_v2(uuid[4] == '1', device); /* GPU-0..., GPU-1... */
}

int nvmlDeviceGetUtilizationRates(void *device, unsigned percent[2])
{
    enum { NOT_SUPPORTED = 3 };
    percent[0] = 73;
    percent[1] = 11;
    return device == &gpus[1] ? NOT_SUPPORTED : 0;
}

int nvmlDeviceGetMemoryInfo(void *device, unsigned long long bytes[3])
{
    bytes[0] = 80ull << 30; /* total, free, used */
    bytes[1] = 70ull << 30;
    bytes[2] = 10ull << 30;
    return 0;
}
