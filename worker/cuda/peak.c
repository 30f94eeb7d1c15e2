/* worker/cuda/peak.c - see peak.h */
#include "worker/cuda/peak.h"

#include "common/mem.h"

#include <ctype.h>
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

/* Types without a unit of their own are computed as fp32. */
static const struct arch {
    int major, minor;
    int fp32, tf32, bf16, fp16;
} archs[] = {
    {7, 0, 128, 128, 128, 1024},    /* Volta */
    {7, 5, 128, 128, 128, 1024},    /* Turing */
    {8, 0, 128, 1024, 2048, 2048},  /* Ampere, GA100 */
    {8, 6, 256, 512, 1024, 1024},   /* Ampere, GA10x */
    {8, 9, 256, 512, 1024, 1024},   /* Ada */
    {9, 0, 256, 2048, 4096, 4096},  /* Hopper */
    {10, 0, 256, 4096, 8192, 8192}, /* Blackwell */
    {10, 3, 256, 4096, 8192, 8192}, /* Blackwell Ultra */
    {12, 0, 256, 512, 1024, 1024},  /* Blackwell, GB20x */
};

/* Matched as whole words of a product's name; "RTX A*" matches a prefix. `part`:
 * products run at the architecture's rate divided by this. */
static const struct product {
    int major, minor;
    const char *words;
    int part;
} products[] = {
    {7, 0, "V100", 1},         {7, 0, "V100S", 1},       {7, 0, "GV100", 1},
    {7, 5, "T4", 1},           {7, 5, "Quadro RTX", 1},  {7, 5, "TITAN RTX", 1},
    {7, 5, "GeForce RTX", 2},  {8, 0, "A100", 1},        {8, 0, "A800", 1},
    {8, 0, "A30", 1},          {8, 6, "A40", 1},         {8, 6, "A10", 1},
    {8, 6, "A10G", 2},         {8, 6, "A16", 1},         {8, 6, "A2", 1},
    {8, 6, "RTX A*", 1},       {8, 6, "GeForce RTX", 2}, {8, 9, "L4", 1},
    {8, 9, "L40", 2},          {8, 9, "L40S", 1},        {8, 9, "Ada Generation", 1},
    {8, 9, "GeForce RTX", 2},  {9, 0, "H100", 1},        {9, 0, "H200", 1},
    {9, 0, "GH200", 1},        {9, 0, "H800", 1},        {10, 0, "B200", 1},
    {10, 0, "GB200", 1},       {10, 3, "B300", 1},       {10, 3, "GB300", 1},
    {12, 0, "GeForce RTX", 2}, {12, 0, "RTX PRO", 1},
};

/* "NVIDIA A10" contains "A10", "NVIDIA A100" does not. */
static bool has_words(const char *name, const char *words)
{
    size_t n = strcspn(words, "*");
    for (const char *at = name; *at; at++) {
        bool begins = at == name || !isalnum((unsigned char)at[-1]);
        if (begins && strncmp(at, words, n) == 0 &&
            (words[n] == '*' || !isalnum((unsigned char)at[n])))
            return true;
    }
    return false;
}

static const struct product *find_product(const char *name, int major, int minor)
{
    for (size_t i = 0; i < ARRAY_LEN(products); i++) {
        const struct product *p = &products[i];
        if (p->major == major && p->minor == minor && has_words(name, p->words))
            return p;
    }
    return NULL;
}

static const struct arch *find_arch(int major, int minor)
{
    for (size_t i = 0; i < ARRAY_LEN(archs); i++) {
        if (archs[i].major == major && archs[i].minor == minor)
            return &archs[i];
    }
    return NULL;
}

int peak_flop_per_clock(const char *name, int major, int minor, enum precision precision)
{
    const struct arch *a = find_arch(major, minor);
    const struct product *p = find_product(name, major, minor);
    if (!a || !p)
        return 0;
    const int rates[] = {[PRECISION_FP32] = a->fp32,
                         [PRECISION_TF32] = a->tf32,
                         [PRECISION_BF16] = a->bf16,
                         [PRECISION_FP16] = a->fp16};
    int own =
        rates[precision] / p->part; /* of tensor cores, which the type may not use */
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
