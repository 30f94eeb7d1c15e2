/* worker/kernels/kernels.c - the engines of this build, and the choice for this CPU */
#include "worker/kernels/kernels.h"

#include "common/err.h"
#include "common/mem.h"

#include <string.h>

const char *const precision_names[] = {"fp32", "bf16", "tf32", "fp16", NULL};

extern const struct kernels avx512_kernels, avx2_kernels, simd_kernels;
extern const struct kernels avx512_bf16_kernels, avx2_bf16_kernels, simd_bf16_kernels;

static bool always(void)
{
    return true;
}

#ifdef __x86_64__

static bool has_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

static bool has_avx512_bf16(void)
{
    return has_avx512() && __builtin_cpu_supports("avx512bf16");
}

static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

#endif

const struct kernels_here all_kernels[] = {
#ifdef __x86_64__
    {&avx512_kernels, has_avx512},
    {&avx2_kernels, has_avx2},
#endif
    {&simd_kernels, always},
#ifdef __x86_64__
    {&avx512_bf16_kernels, has_avx512_bf16},
    {&avx2_bf16_kernels, has_avx2},
#endif
    {&simd_bf16_kernels, always},
    {NULL, NULL},
};

const struct kernels *kernels_get(const char *name, enum precision precision,
                                  struct ddp_err *err)
{
    OWNED char *names = NULL;
    if (precision != PRECISION_BF16)
        precision = PRECISION_FP32;
    for (const struct kernels_here *e = all_kernels; e->kernels; e++) {
        if (e->kernels->precision != precision || !e->runs_here())
            continue;
        if (name == NULL || strcmp(name, e->kernels->name) == 0)
            return e->kernels;
        xappendf(&names, "%s%s", names ? ", " : "", e->kernels->name);
    }
    err_set(err, "unknown kernels '%s'; this machine has%s%s: %s", name,
            precision == PRECISION_FP32 ? "" : " for ",
            precision == PRECISION_FP32 ? "" : precision_names[precision], names);
    return NULL;
}
