/* worker/kernels/loss.c - the losses, shared by all engines */
#include "worker/kernels/tables.h"

#include <math.h>
#include <stddef.h>

float softmax_loss(const float *logits, const uint32_t *labels, float smooth,
                   float *dlogits, int n, int K, float scale, int *correct)
{
    double loss = 0, even = (double)smooth / K;
    int right = 0;
    for (int b = 0; b < n; b++, logits += K) {
        int best = 0;
        for (int k = 1; k < K; k++)
            if (logits[k] > logits[best])
                best = k;
        right += best == (int)labels[b];
        double sum = 0, all = 0; /* of e^(logit - max), which cannot overflow; of these */
        for (int k = 0; k < K; k++) {
            sum += (double)expf(logits[k] - logits[best]);
            all += (double)(logits[k] - logits[best]);
        }
        loss += log(sum) - (double)((1 - smooth) * (logits[labels[b]] - logits[best]));
        loss -= smooth > 0 ? even * all : 0; /* all may be infinite */
        for (int k = 0; dlogits && k < K; k++) {
            float p = expf(logits[k] - logits[best]) / (float)sum;
            float wanted = (float)even + (k == (int)labels[b] ? 1 - smooth : 0);
            dlogits[(size_t)b * K + k] = (p - wanted) * scale / (float)n;
        }
    }
    *correct = right;
    return (float)(loss / n);
}

float mse_loss(const float *y, const float *t, float *dy, int n, int K, float scale)
{
    double loss = 0;
    size_t all = (size_t)n * K;
    for (size_t i = 0; i < all; i++) {
        float d = y[i] - t[i];
        loss += (double)d * (double)d;
        if (dy)
            dy[i] = 2 * d * scale / (float)all;
    }
    return (float)(loss / (double)all);
}
