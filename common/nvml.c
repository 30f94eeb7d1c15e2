/* common/nvml.c - see nvml.h */
#include "common/nvml.h"

#include "common/mem.h"
#include "common/symbols.h"

#include <stdbool.h>

static struct nvml nvml;

static bool find_all(void *library)
{
    static const struct symbol symbols[] = {
        {"nvmlInit_v2", &nvml.init},
        {"nvmlDeviceGetCount_v2", &nvml.count},
        {"nvmlDeviceGetHandleByIndex_v2", &nvml.get},
        {"nvmlDeviceGetHandleByUUID", &nvml.get_by_uuid},
        {"nvmlDeviceGetUtilizationRates", &nvml.load},
        {"nvmlDeviceGetMemoryInfo", &nvml.memory}};
    return library && !symbols_find(library, symbols, ARRAY_LEN(symbols));
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
