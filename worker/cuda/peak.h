/* worker/cuda/peak.h - what a GPU could compute, if it did nothing else
 *
 * Streaming multiprocessors x their highest clock x floating-point operations of one in a
 * clock, dense, with sums in fp32. The last is from NVIDIA's papers on each architecture
 * (Volta to Blackwell: "GV100", "TU102", "GA100", "GA102", "AD102", "GH100" and "GB202"
 * whitepapers; their tables of peak rates divided by multiprocessors and boost clock).
 * A chip at its power limit runs at less than its highest clock, so that large products
 * come to 70 to 85 % of this.
 */
#ifndef WORKER_CUDA_PEAK_H
#define WORKER_CUDA_PEAK_H

#include "worker/kernels/kernels.h"

/* FLOP of one multiprocessor in a clock, with this compute capability; 0: not known. */
int peak_flop_per_clock(int major, int minor, enum precision precision);

/* FLOP/s of a device; 0: not known. */
double peak_of_device(int device, enum precision precision);

#endif
