/* common/nvml.h - functions of NVML that all its versions since 2015 have */
#ifndef COMMON_NVML_H
#define COMMON_NVML_H

struct nvml {
    int (*init)(void);
    int (*count)(unsigned *n);
    int (*get)(unsigned index, void **device);
    int (*get_by_uuid)(const char *uuid, void **device);
    int (*load)(void *device, unsigned percent[2]); /* of the GPU, of its memory bus */
    int (*memory)(void *device, unsigned long long b[3]); /* total, free, used */
};

/* Loaded and initialised once; NULL: there is none. May block. */
const struct nvml *nvml_load(void);

#endif
