/* launcher/plugins/health/gpus_main.c - ddprun-gpus: does each GPU of this host answer?
 *
 * A GPU that has fallen off the bus, or needs a reset, is still listed by the driver;
 * NVML returns an error for it. A process of its own, as NVML may block. Exit status 1,
 * with one line on stderr, if a GPU is lost; else, or without NVML, 0. GPUs that
 * CUDA_VISIBLE_DEVICES excludes are not checked.
 * https://docs.nvidia.com/deploy/nvml-api (nvmlReturn_t)
 */
#include "common/nvml.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NVML_GPU_IS_LOST = 15, NVML_RESET_REQUIRED = 16 };

static const struct nvml *nvml;

static bool answers(const char *name, int rc, void *device)
{
    unsigned long long bytes[3];
    rc = rc == 0 ? nvml->memory(device, bytes) : rc;
    if (rc != NVML_GPU_IS_LOST && rc != NVML_RESET_REQUIRED)
        return true;
    fprintf(stderr, "GPU %s %s (NVML)\n", name,
            rc == NVML_GPU_IS_LOST ? "is lost" : "needs a reset");
    return false;
}

static bool all_answer(void)
{
    unsigned n = 0;
    bool good = nvml->count(&n) == 0;
    for (unsigned i = 0; good && i < n; i++) {
        void *device = NULL;
        char name[16];
        snprintf(name, sizeof name, "%u", i);
        int rc = nvml->get(i, &device);
        if (!answers(name, rc, device))
            return false;
    }
    return true;
}

static bool these_answer(char *visible)
{
    for (char *one = strtok(visible, ","); one; one = strtok(NULL, ",")) {
        void *device = NULL;
        char *end;
        unsigned long i = strtoul(one, &end, 10);
        int rc = end > one && !*end ? nvml->get((unsigned)i, &device)
                                    : nvml->get_by_uuid(one, &device);
        if (!answers(one, rc, device))
            return false;
    }
    return true;
}

int main(void)
{
    char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (!(nvml = nvml_load()))
        return 0;
    return (visible ? these_answer(visible) : all_answer()) ? 0 : 1;
}
