/* worker/kernels/vector_winograd.h - 3x3 convolutions by Winograd's minimal filtering
 *
 * Lavin and Gray, "Fast algorithms for convolutional neural networks", CVPR 2016. m x m
 * outputs y of a channel come from a square of (m+2) x (m+2) inputs d, which is
 * transformed as the kernel g is. Its (m+2)^2 numbers, the points, take as many products,
 * 16 or 36 in place of 36 or 144:
 *
 *     y = A' M A,   M = sum over channels of u * v,   u = G g G',   v = B' d B
 *
 * For each point, that sum is a product of matrices, channels by squares; likewise for
 * dx, which is such a convolution of dy with the rotated kernels. The gradients are those
 * of the formula: the gradient of M is A dy A', that of u its product with v, and dw =
 * G' du G. With m = 2 rounding errors are 0.7 to 1.5 times those of a direct convolution,
 * with m = 4 3 to 7 times, 0.6 to 3 parts in a million (bench/experiments.md).
 *
 * Some squares of a group of images are processed together. With up to 64 channels their
 * v and M fit in a second-level cache of 512 KB; with more channels there are more
 * squares, since reading u then costs more than these misses. Inputs are read from images
 * without padding. With bf16 all of this is fp32, except the images; AVX512-BF16 makes
 * direct convolutions faster than 2x2 squares. A square is the paper's tile; here a tile
 * is what registers hold.
 */
#ifndef WORKER_KERNELS_VECTOR_WINOGRAD_H
#define WORKER_KERNELS_VECTOR_WINOGRAD_H

#include "worker/kernels/vector_conv_impl.h"

#define winograd_plan    NAMED(winograd_plan)
#define winograd_room    NAMED(winograd_room)
#define winograd_forward NAMED(winograd_forward)
#define winograd_taps    NAMED(winograd_taps)
#define winograd_back    NAMED(winograd_back)
#define winograd_pack    NAMED(winograd_pack)
#define winograd_unpack  NAMED(winograd_unpack)

/* Chooses p->winograd: 4, 2, or 0 if a direct convolution is faster. */
void winograd_plan(struct conv_plan *p);
/* Allocates a thread's buffers. */
void winograd_room(struct conv_plan *p, struct own *own);

/* For n images in a thread: y, and `arg` if it is pooled; the gradient of u, added to
 * own->dw; dx. dy is the gradient before pooling. */
void winograd_forward(const struct conv_plan *p, struct own *own, int n, const float *x,
                      float *y, uint8_t *arg);
void winograd_taps(const struct conv_plan *p, struct own *own, int n, const float *x,
                   const float *dy);
void winograd_back(const struct conv_plan *p, struct own *own, int n, const float *x,
                   const float *dy, float *dx);

/* Kernels of `count` channels for a block of features, rows[count][9][BLOCK], to
 * u[points][count][BLOCK], whose points are `point` floats apart; and their gradient from
 * that of u. */
void winograd_pack(int m, int count, const float *rows, float *u, size_t point);
void winograd_unpack(int m, int count, const float *du, size_t point, float *rows);

#endif
