/* launcher/plugins/health/gpus_main.c - ddprun-gpus: does each GPU of this host answer?
 *
 * A GPU that has fallen off the bus, or needs a reset, is still listed by the driver;
 * NVML returns an error for it. A process of its own, as NVML may block. Exit status 1,
 * with one line on stderr, if a GPU is lost; else, or without NVML, 0. GPUs that
 * CUDA_VISIBLE_DEVICES excludes are not checked.
 *
 * ddprun-gpus --use: a line each second until the reader has left (observe/sampler.c):
 * for each GPU "percent:used:total", memory in MiB. Nothing without NVML.
 * https://docs.nvidia.com/deploy/nvml-api (nvmlReturn_t)
 */
#include "common/duration.h"
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

/* Of a GPU that does not answer: zeros. */
static void print_use(unsigned index)
{
    void *device;
    unsigned percent[2] = {0};
    unsigned long long bytes[3] = {0}, used = 0, total = 0;
    if (nvml->get(index, &device) == 0) {
        if (nvml->load(device, percent) != 0)
            percent[0] = 0;
        if (nvml->memory(device, bytes) == 0) {
            total = bytes[0] >> 20;
            used = bytes[2] >> 20;
        }
    }
    printf("%u:%llu:%llu ", percent[0], used, total);
}

static int print_all_use(void)
{
    for (unsigned n; nvml->count(&n) == 0; sleep_ms(1000)) {
        for (unsigned i = 0; i < n; i++)
            print_use(i);
        putchar('\n');
        if (fflush(stdout) != 0)
            break;
    }
    return 1;
}

int main(int argc, char **argv)
{
    char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (!(nvml = nvml_load()))
        return 0;
    if (argc > 1 && strcmp(argv[1], "--use") == 0)
        return print_all_use();
    return (visible ? these_answer(visible) : all_answer()) ? 0 : 1;
}
