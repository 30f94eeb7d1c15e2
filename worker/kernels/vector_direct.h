/* worker/kernels/vector_direct.h - direct convolution, for what Winograd's method does
 * not do: other kernels, strides, first layers */
#ifndef WORKER_KERNELS_VECTOR_DIRECT_H
#define WORKER_KERNELS_VECTOR_DIRECT_H

#include "worker/kernels/vector_conv_impl.h"

#define direct_room    NAMED(direct_room)
#define direct_forward NAMED(direct_forward)
#define direct_taps    NAMED(direct_taps)
#define direct_back    NAMED(direct_back)

/* The same as in vector_winograd.h. */
void direct_room(struct conv_plan *p, struct own *own);
void direct_forward(const struct conv_plan *p, struct own *own, int n, const float *x,
                    float *y, uint8_t *arg);
void direct_taps(const struct conv_plan *p, struct own *own, int n, const float *x,
                 const float *dy);
void direct_back(const struct conv_plan *p, struct own *own, int n, const float *x,
                 const float *dy, float *dx);

#endif
