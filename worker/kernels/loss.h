/* worker/kernels/loss.h - the losses, shared by all engines
 *
 * A batch has a few hundred logits, whose cost never shows in a profile, so there is
 * one implementation of each. Contracts in kernels.h.
 */
#ifndef WORKER_KERNELS_LOSS_H
#define WORKER_KERNELS_LOSS_H

#include <stdint.h>

float softmax_loss(const float *logits, const uint8_t *labels, float *dlogits, int n,
                   int K, float scale, int *correct);
float mse_loss(const float *y, const float *t, float *dy, int n, int K, float scale);

#endif
