/* worker/cuda/peak.c - see peak.h */
#include "worker/cuda/peak.h"

#include "common/mem.h"

#include <cuda_runtime_api.h>
#include <stddef.h>

/* What a chip has no unit for is computed as fp32. */
static const struct {
    int major, minor; /* minor -1: the rest of them */
    int fp32, tf32, bf16, fp16;
} chips[] = {
    {7, 0, 128, 128, 128, 1024},     /* V100 */
    {7, 5, 128, 128, 128, 1024},     /* T4 */
    {8, 0, 128, 1024, 2048, 2048},   /* A100 */
    {8, -1, 256, 512, 1024, 1024},   /* A40, L40 */
    {9, 0, 256, 2048, 4096, 4096},   /* H100, H200 */
    {10, -1, 256, 4096, 8192, 8192}, /* B200 */
    {12, -1, 256, 512, 1024, 1024},  /* RTX PRO 6000 */
};

int peak_flop_per_clock(int major, int minor, enum precision precision)
{
    for (size_t i = 0; i < ARRAY_LEN(chips); i++) {
        if (chips[i].major != major || (chips[i].minor >= 0 && chips[i].minor != minor))
            continue;
        switch (precision) {
        case PRECISION_FP32:
            return chips[i].fp32;
        case PRECISION_TF32:
            return chips[i].tf32;
        case PRECISION_BF16:
            return chips[i].bf16;
        case PRECISION_FP16:
            return chips[i].fp16;
        }
    }
    return 0;
}

double peak_of_device(int device, enum precision precision)
{
    int major = 0, minor = 0, units = 0, khz = 0;
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) !=
            cudaSuccess ||
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) !=
            cudaSuccess ||
        cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, device) !=
            cudaSuccess ||
        cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, device) != cudaSuccess) {
        cudaGetLastError();
        return 0;
    }
    return (double)units * khz * 1e3 * peak_flop_per_clock(major, minor, precision);
}
