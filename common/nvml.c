/* common/nvml.c - see nvml.h */
#include "common/nvml.h"

#include "common/mem.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

static struct nvml nvml;

static bool find_all(void *library)
{
    const struct {
        const char *name;
        void *to;
    } symbols[] = {{"nvmlInit_v2", &nvml.init},
                   {"nvmlDeviceGetCount_v2", &nvml.count},
                   {"nvmlDeviceGetHandleByIndex_v2", &nvml.get},
                   {"nvmlDeviceGetHandleByUUID", &nvml.get_by_uuid},
                   {"nvmlDeviceGetUtilizationRates", &nvml.load},
                   {"nvmlDeviceGetMemoryInfo", &nvml.memory}};
    for (size_t i = 0; i < ARRAY_LEN(symbols); i++) {
        void *found = library ? dlsym(library, symbols[i].name) : NULL;
        if (!found)
            return false;
        memcpy(symbols[i].to, &found, sizeof found);
    }
    return true;
}

const struct nvml *nvml_load(void)
{
    static enum { UNTRIED, ABSENT, THERE } state;
    if (state == UNTRIED) {
        void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
        state = find_all(library) && nvml.init() == 0 ? THERE : ABSENT;
    }
    return state == THERE ? &nvml : NULL;
}
