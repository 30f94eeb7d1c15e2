/* worker/cuda/kernels.h - our own kernels: what lies between the libraries' products
 *
 * Each function puts one kernel on a stream and returns; a failed launch shows at the
 * stream's next wait. All arrays are on the device, floats unless said otherwise, images
 * NCHW. Shapes are those of worker/kernels/kernels.h, and so are the formulas: the CPU's
 * plain kernels are what these are held against. Sums are made in an order that depends
 * on the shapes alone.
 *
 * What changes from step to step (samples, learning rate, seeds) is read from a struct
 * cuda_step in device memory, so that a recorded graph can be played again.
 */
#ifndef WORKER_CUDA_KERNELS_H
#define WORKER_CUDA_KERNELS_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One step, as the host writes it. `which` follows it in memory: `mine` indices. */
struct cuda_step {
    float lr;
    float share; /* this rank's part of the step's samples */
    float stop, interrupted, warned;
    int mine;       /* samples of this rank */
    uint64_t taken; /* steps before this one */
    uint64_t seed;  /* of dropout */
    /* where the samples lie: images and labels, or inputs and targets */
    const uint8_t *pixels, *labels;
    const float *inputs, *targets;
};

/* The numbers that are summed over the ranks with the gradients: struct step_sums, with
 * room to a multiple of 64 bytes. */
enum { CUDA_HEAD = 16 };
struct cuda_head {
    float loss, correct, bad, stop, interrupted, warned, skipped, unused[CUDA_HEAD - 7];
};

struct cuda_result {
    struct cuda_head head; /* summed */
    float loss;            /* this rank's own mean */
};

/* x[i] = as_float[channel][pixels[which[i]]], and the labels with them; an image has len
 * bytes, `plane` of each channel. */
void cuda_gather_images(const struct cuda_step *s, const uint32_t *which, int n, int len,
                        int plane, const float *as_float, float *x, uint8_t *labels,
                        cudaStream_t stream);
/* x[n,len], t[n,outputs] from s->inputs and s->targets. */
void cuda_gather_floats(const struct cuda_step *s, const uint32_t *which, int n, int len,
                        int outputs, float *x, float *t, cudaStream_t stream);

/* y = max(0, z + bias[K]) of z[n,K,H,W], and its 2x2 max-pool when `arg` is not NULL:
 * y[n,K,H/2,W/2], arg the place of each maximum. y may be z where nothing is pooled. */
void cuda_bias_relu(const float *z, const float *bias, int n, int K, int H, int W,
                    float *y, uint8_t *arg, cudaStream_t stream);
/* Its way back: dz[n,K,H,W] = dy * scale where y > 0 (and was the maximum), else 0. */
void cuda_bias_relu_back(const float *y, const float *dy, const uint8_t *arg, float scale,
                         int n, int K, int H, int W, float *dz, cudaStream_t stream);
/* g = dy * scale where y > 0, else 0; in place. */
void cuda_mask(const float *y, float *dy, float scale, int64_t n, cudaStream_t stream);

/* sums[k] over b and i of x[b,k,i], i below `inner`: the gradient of a bias. */
void cuda_sum_channels(const float *x, int n, int K, int inner, float *sums,
                       cudaStream_t stream);

/* As `dropout` in worker/kernels/kernels.h, with the same bits drawn: the stream of
 * layer `layer` of `layers` at step s->taken, in the step's batch `batch`. */
void cuda_dropout(float *y, int64_t n, float p, const struct cuda_step *s, int batch,
                  int layer, int layers, cudaStream_t stream);

/* The loss of n of the step's samples, the batch `batch` of them, and its gradient
 * (unless dy is NULL) as part of the mean over the samples of all ranks. head: this
 * rank's part of the sums; *own: its own mean; batches after the first are added. One
 * block: the order of the sum is fixed. `s` NULL: a test; loss and *own are the mean of
 * the n. */
void cuda_softmax_loss(const float *logits, const uint8_t *labels, float *dy, int n,
                       int K, const struct cuda_step *s, int batch,
                       struct cuda_head *head, float *own, cudaStream_t stream);
void cuda_mse_loss(const float *y, const float *t, float *dy, int n, int K,
                   const struct cuda_step *s, int batch, struct cuda_head *head,
                   float *own, cudaStream_t stream);
/* The head of a rank without samples. */
void cuda_no_loss(const struct cuda_step *s, struct cuda_head *head, float *own,
                  cudaStream_t stream);

/* to += from */
void cuda_add(float *to, const float *from, int64_t n, cudaStream_t stream);

/* The norm of the n gradients: not finite makes the step bad; beyond `most` (0: no limit)
 * *scale brings it there, as torch.nn.utils.clip_grad_norm_ does, else it is 1. `room`:
 * CUDA_PARTS doubles. */
enum { CUDA_PARTS = 256 };
void cuda_clip(const float *g, int64_t n, float most, double *room,
               struct cuda_head *head, float *scale, cudaStream_t stream);

/* One optimiser step over n floats, their gradients times *scale, unless head->bad: then
 * nothing changes. m, v are the optimiser's states in the order of its table; m may be
 * NULL without momentum. */
void cuda_sgd(float *w, const float *g, float *m, int64_t n, float momentum, float decay,
              const float *scale, const struct cuda_step *s, const struct cuda_head *head,
              cudaStream_t stream);
/* `updates`: of the optimiser, before this one. */
void cuda_adam(float *w, const float *g, float *m, float *v, int64_t n, float b1,
               float b2, float eps, float decay, const uint64_t *updates,
               const float *scale, const struct cuda_step *s,
               const struct cuda_head *head, cudaStream_t stream);
void cuda_adadelta(float *w, const float *g, float *sq, float *acc, int64_t n, float rho,
                   float eps, float decay, const float *scale, const struct cuda_step *s,
                   const struct cuda_head *head, cudaStream_t stream);

/* The step is over: its numbers into *result, and one update more unless it was bad; with
 * `skip` a bad one is told as skipped. */
void cuda_finish(const struct cuda_head *head, const float *own, bool skip,
                 struct cuda_result *result, uint64_t *updates, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
