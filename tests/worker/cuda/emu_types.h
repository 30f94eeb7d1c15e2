/* tests/worker/cuda/emu_types.h - arrays of the libraries' number types, as floats */
#ifndef EMU_TYPES_H
#define EMU_TYPES_H

#include <cstddef>
#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <library_types.h>
#include <vector>

static inline void emu_load(const void *from, cudaDataType_t type, size_t n, float *to)
{
    for (size_t i = 0; i < n; i++)
        to[i] = type == CUDA_R_16BF
                    ? __bfloat162float(static_cast<const __nv_bfloat16 *>(from)[i])
                : type == CUDA_R_16F ? __half2float(static_cast<const __half *>(from)[i])
                                     : static_cast<const float *>(from)[i];
}

/* From element `at` of `to` on. */
static inline void emu_store(const float *from, cudaDataType_t type, size_t n, void *to,
                             size_t at)
{
    for (size_t i = 0; i < n; i++) {
        if (type == CUDA_R_16BF)
            static_cast<__nv_bfloat16 *>(to)[at + i] = __float2bfloat16_rn(from[i]);
        else if (type == CUDA_R_16F)
            static_cast<__half *>(to)[at + i] = __float2half_rn(from[i]);
        else
            static_cast<float *>(to)[at + i] = from[i];
    }
}

#endif
