/* worker/cuda/peak.h - what a GPU could compute, if it did nothing else
 *
 * Streaming multiprocessors x their highest clock x floating-point operations of one in a
 * clock, dense, with sums in fp32. A chip at its power limit runs at less than its
 * highest clock, so that large products come to 70 to 85 % of this.
 *
 * The compute capability tells an architecture's units, but not what a product may do
 * with them: of one chip some add up products in fp32 at half the rate (GeForce, L40,
 * A10G), and some are cut down further. So a product counts by its name, and one that is
 * not in the table is unknown, rather than wrong by a factor of two.
 *
 * From NVIDIA's papers, their peak rates divided by multiprocessors and boost clock:
 * whitepapers on GV100, TU102 (appendices on T4 and GeForce), GA100, GA102 (A40, RTX
 * A6000, GeForce RTX 30), AD102 (GeForce RTX 40, RTX 6000 Ada), GH100, GB202 (GeForce RTX
 * 50) and RTX PRO Blackwell; data sheets of V100, T4, A30, A10, A10G, A16, A2, A40, L4,
 * L40, L40S, H100, H200, GH200, HGX B200 and HGX B300.
 * tests/worker/cuda/test_peak.c holds the products against their rates.
 */
#ifndef WORKER_CUDA_PEAK_H
#define WORKER_CUDA_PEAK_H

#include "worker/kernels/kernels.h"

/* FLOP of one multiprocessor in a clock, of the product that the driver calls `name`,
 * with this compute capability; 0: not known. */
int peak_flop_per_clock(const char *name, int major, int minor, enum precision precision);

/* FLOP/s of a device; 0: not known. */
struct cudaDeviceProp;
double peak_of_device(int device, const struct cudaDeviceProp *is,
                      enum precision precision);

#endif
