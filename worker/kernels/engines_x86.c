/* worker/kernels/engines_x86.c - see engines.h */
#include "worker/kernels/engines.h"

extern const struct kernels avx512_kernels, avx2_kernels, simd_kernels;
extern const struct kernels avx512_bf16_kernels, avx2_bf16_kernels, simd_bf16_kernels;

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

static bool always(void)
{
    return true;
}

const struct engine engines[] = {{&avx512_kernels, has_avx512},
                                 {&avx2_kernels, has_avx2},
                                 {&simd_kernels, always},
                                 {&avx512_bf16_kernels, has_avx512_bf16},
                                 {&avx2_bf16_kernels, has_avx2},
                                 {&simd_bf16_kernels, always},
                                 {NULL, NULL}};
