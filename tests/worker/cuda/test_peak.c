/* What GPUs could compute, beside what NVIDIA says of them: the rates of whitepapers and
 * data sheets, dense, with sums in fp32, at the multiprocessors and the boost clock of
 * the same paper. (Of Hopper fp32 is told at another clock than the products of tensor
 * cores; of B200 no clock is told, and the rate goes with 1.856 GHz.) */
#include "tests/support/suite.h"

#include "common/mem.h"
#include "worker/cuda/peak.h"

static const struct {
    const char *name; /* as the driver tells it */
    int major, minor, units, mhz;
    double fp32, tf32, bf16, fp16; /* TFLOP/s; 0: not told, or no unit for it */
} papers[] = {
    {"Tesla V100-SXM2-16GB", 7, 0, 80, 1530, 15.7, 0, 0, 125},
    {"Tesla V100S-PCIE-32GB", 7, 0, 80, 1597, 16.4, 0, 0, 130},
    {"Tesla T4", 7, 5, 40, 1590, 8.1, 0, 0, 65},
    {"NVIDIA TITAN RTX", 7, 5, 72, 1770, 16.3, 0, 0, 130.5},
    {"NVIDIA GeForce RTX 2080 Ti", 7, 5, 68, 1545, 13.4, 0, 0, 53.8},
    {"NVIDIA A100-SXM4-80GB", 8, 0, 108, 1410, 19.5, 156, 312, 312},
    {"NVIDIA A100 80GB PCIe", 8, 0, 108, 1410, 19.5, 156, 312, 312},
    {"NVIDIA A30", 8, 0, 56, 1440, 10.3, 82, 165, 165},
    {"NVIDIA A40", 8, 6, 84, 1740, 37.4, 74.8, 149.7, 149.7},
    {"NVIDIA A10", 8, 6, 72, 1695, 31.2, 62.5, 125, 125},
    {"NVIDIA A10G", 8, 6, 80, 1710, 35, 35, 70, 70},
    {"NVIDIA A16", 8, 6, 10, 1695, 4.34, 8.68, 17.36, 17.36},
    {"NVIDIA RTX A6000", 8, 6, 84, 1800, 38.7, 77.4, 154.8, 154.8},
    {"NVIDIA GeForce RTX 3090", 8, 6, 82, 1695, 35.6, 35.6, 71, 71},
    {"NVIDIA GeForce RTX 3080", 8, 6, 68, 1710, 29.8, 29.8, 59.5, 59.5},
    {"NVIDIA L4", 8, 9, 58, 2040, 30.3, 60, 121, 121},
    {"NVIDIA L40", 8, 9, 142, 2490, 90.5, 90.5, 181.05, 181.05},
    {"NVIDIA L40S", 8, 9, 142, 2520, 91.6, 183, 362.05, 362.05},
    {"NVIDIA RTX 6000 Ada Generation", 8, 9, 142, 2505, 91.1, 182.1, 364.2, 364.2},
    {"NVIDIA GeForce RTX 4090", 8, 9, 128, 2520, 82.6, 82.6, 165.2, 165.2},
    {"NVIDIA H100 80GB HBM3", 9, 0, 132, 1830, 0, 494.7, 989.4, 989.4},
    {"NVIDIA H100 80GB HBM3", 9, 0, 132, 1980, 66.9, 0, 0, 0},
    {"NVIDIA H100 PCIe", 9, 0, 114, 1620, 0, 378, 756, 756},
    {"NVIDIA H200", 9, 0, 132, 1830, 0, 494.7, 989.4, 989.4},
    {"NVIDIA GH200 480GB", 9, 0, 132, 1830, 0, 494.7, 989.4, 989.4},
    {"NVIDIA B200", 10, 0, 148, 1856, 0, 1125, 2250, 2250},
    {"NVIDIA GeForce RTX 5090", 12, 0, 170, 2407, 104.8, 104.8, 209.5, 209.5},
    {"NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 12, 0, 188, 2617, 126, 251.9,
     503.8, 503.8},
};

LOOP_TEST(each_computes_what_its_paper_says, ARRAY_LEN(papers))
{
    const double told[] = {[PRECISION_FP32] = papers[_i].fp32,
                           [PRECISION_TF32] = papers[_i].tf32,
                           [PRECISION_BF16] = papers[_i].bf16,
                           [PRECISION_FP16] = papers[_i].fp16};
    for (size_t p = 0; p < ARRAY_LEN(told); p++) {
        double rate = peak_flop_per_clock(papers[_i].name, papers[_i].major,
                                          papers[_i].minor, (enum precision)p) *
                      1e-6 * papers[_i].units * papers[_i].mhz;
        ck_assert_msg(told[p] <= 0 || (rate > 0.985 * told[p] && rate < 1.015 * told[p]),
                      "%s: %g instead of %g TFLOP/s", papers[_i].name, rate, told[p]);
    }
}

/* Of the same architectures, but with an unknown peak: cut down, of
 * another kind, or later than this table. */
static const struct {
    const char *name;
    int major, minor;
} strangers[] = {
    {"NVIDIA H20", 9, 0},
    {"NVIDIA L20", 8, 9},
    {"NVIDIA CMP 170HX", 8, 0},
    {"NVIDIA GeForce GTX 1660", 7, 5},
    {"Orin", 8, 7},
    {"NVIDIA GB10", 12, 1},
    {"Tesla P100-PCIE-16GB", 6, 0},
    {"NVIDIA A100", 8, 6},
    {"NVIDIA L400", 8, 9},
    {"XL40", 8, 9},
    {"", 9, 0},
};

LOOP_TEST(a_stranger_is_unknown, ARRAY_LEN(strangers))
{
    for (int p = PRECISION_FP32; p <= PRECISION_FP16; p++)
        ck_assert_int_eq(peak_flop_per_clock(strangers[_i].name, strangers[_i].major,
                                             strangers[_i].minor, (enum precision)p),
                         0);
}
