/* worker/cuda/peak.c - see peak.h */
#include "worker/cuda/peak.h"

#include "common/mem.h"

#include <ctype.h>
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

/* What a multiprocessor computes in a clock; types without a unit of their own are
 * computed as fp32. Products at this rate, or at half of it: whole words of their names,
 * or with a "*" the beginning of a word. */
static const struct arch {
    int major, minor;
    int fp32, tf32, bf16, fp16;
    const char *full, *half;
} archs[] = {
    {7, 0, 128, 128, 128, 1024, "V100,V100S,GV100", NULL},                 /* Volta */
    {7, 5, 128, 128, 128, 1024, "T4,Quadro RTX,TITAN RTX", "GeForce RTX"}, /* Turing */
    {8, 0, 128, 1024, 2048, 2048, "A100,A800,A30", NULL},                  /* GA100 */
    {8, 6, 256, 512, 1024, 1024, "A40,A10,A16,A2,RTX A*", "A10G,GeForce RTX"}, /* GA10x */
    {8, 9, 256, 512, 1024, 1024, "L4,L40S,Ada Generation", "L40,GeForce RTX"}, /* Ada */
    {9, 0, 256, 2048, 4096, 4096, "H100,H200,GH200,H800", NULL}, /* Hopper */
    {10, 0, 256, 4096, 8192, 8192, "B200,GB200", NULL},          /* Blackwell */
    {10, 3, 256, 4096, 8192, 8192, "B300,GB300", NULL},          /* Ultra */
    {12, 0, 256, 512, 1024, 1024, "RTX PRO", "GeForce RTX"},     /* GB20x */
};

/* Is it one of these products? "NVIDIA A10" is an "A10", "NVIDIA A100" is not. */
static bool is_one_of(const char *name, const char *products)
{
    for (const char *words = products; words; words = strchr(words, ',')) {
        words += *words == ',';
        size_t n = strcspn(words, "*,");
        for (const char *at = name; *at; at++) {
            bool begins = at == name || !isalnum((unsigned char)at[-1]);
            if (begins && strncmp(at, words, n) == 0 &&
                (words[n] == '*' || !isalnum((unsigned char)at[n])))
                return true;
        }
    }
    return false;
}

int peak_flop_per_clock(const char *name, int major, int minor, enum precision precision)
{
    const struct arch *a = archs, *end = archs + ARRAY_LEN(archs);
    while (a < end && (a->major != major || a->minor != minor))
        a++;
    bool half = a < end && is_one_of(name, a->half);
    if (a == end || (!half && !is_one_of(name, a->full)))
        return 0;
    const int rates[] = {[PRECISION_FP32] = a->fp32,
                         [PRECISION_TF32] = a->tf32,
                         [PRECISION_BF16] = a->bf16,
                         [PRECISION_FP16] = a->fp16};
    /* of tensor cores, which the type may not use */
    int own = rates[precision] / (half ? 2 : 1);
    return own > a->fp32 ? own : a->fp32;
}

double peak_of_device(int device, const struct cudaDeviceProp *is,
                      enum precision precision)
{
    int khz = 0; /* since CUDA 13 not among the properties */
    if (cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, device) != cudaSuccess) {
        cudaGetLastError();
        return 0;
    }
    return (double)is->multiProcessorCount * khz * 1e3 *
           peak_flop_per_clock(is->name, is->major, is->minor, precision);
}
