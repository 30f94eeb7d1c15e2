/* worker/cuda/kernels.h - our own kernels: what lies between the libraries' products
 *
 * Each function puts one kernel, or a few, on a stream and returns. Waiting for the
 * stream does not report a failed launch: cuda_refused() does, after all have been put.
 * All arrays are on the device. Shapes are those of worker/kernels/kernels.h, and so are
 * the formulas: the CPU's plain kernels are what these are held against. Sums are made in
 * an order that depends on the shapes alone.
 *
 * Activations and their gradients have a type that is passed with them (void pointers);
 * parameters, their gradients and everything that is summed are float.
 *
 * What changes from step to step (samples, learning rate, seeds, the scale of the loss)
 * is read from device memory, so that a recorded graph can be played again.
 */
#ifndef WORKER_CUDA_KERNELS_H
#define WORKER_CUDA_KERNELS_H

#include "worker/ddp/sums.h"
#include "worker/kernels/augment.h"

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The kernel that was refused first, and where, since this was asked; false: none was.
 * The caller's thread's alone. */
bool cuda_refused(char *kernel, size_t size, int *device, cudaError_t *rc);

enum cuda_type { CUDA_F32, CUDA_BF16, CUDA_F16 };

/* Activations [n,C,H,W]; `last`: channels last, [n,H,W,C], as tensor cores like them. A
 * linear layer's are C features of 1x1, and both are the same. */
struct cuda_map {
    enum cuda_type type;
    bool last;
    int n, C, H, W;
};

/* One step, as the host writes it. `which` follows it in memory: the numbers of `mine`
 * samples, which is also where they lie, unless they have come in this order. */
struct cuda_step {
    float lr;
    float share;           /* this rank's part of the step's samples */
    struct step_sums told; /* of this rank's signals; the rest is 0 */
    int mine;              /* samples of this rank */
    uint64_t taken;        /* steps before this one */
    uint64_t seed;         /* of dropout */
    uint64_t augment_key;
    bool in_order;
    /* where the samples lie: images and labels, or inputs and targets */
    const uint8_t *pixels, *labels;
    const float *inputs, *targets;
};

/* Of 256 bytes, so that the gradients behind it stay aligned. */
enum { CUDA_HEAD = 64 };
struct cuda_head {
    struct step_sums sums;
    float unused[CUDA_HEAD - sizeof(struct step_sums) / sizeof(float)];
};

/* Of fp16: gradients are multiplied by `scale`, so that small ones are not lost. When one
 * is not finite the step is left out and the scale halved; after CUDA_GROW good steps in
 * a row it is doubled. (Micikevicius et al., "Mixed precision training", ICLR 2018; the
 * constants are those of torch.amp.GradScaler.) */
enum { CUDA_GROW = 2000 };
#define CUDA_FIRST_SCALE 65536.0f
#define CUDA_MOST_SCALE  16777216.0f
struct cuda_scaler {
    float scale;
    uint32_t good; /* steps since it was changed */
};

struct cuda_result {
    struct cuda_head head; /* summed */
    float loss;            /* this rank's own mean */
    float loss_scale;      /* of the next step; 0: there is none */
};

/* ---- batch.cu ---- */

/* The step's samples from `from` on, as many as `map` has. Images, whose bytes are
 * [C,H,W]: x = as_float[channel][pixel], moved and mirrored as `how` and s->augment_key
 * say, and their labels. */
void cuda_gather_images(const struct cuda_step *s, const uint32_t *which, int from,
                        struct cuda_map map, struct augment how, const float *as_float,
                        void *x, uint8_t *labels, cudaStream_t stream);
/* x[n,len] of `type`, t[n,outputs] from s->inputs and s->targets. */
void cuda_gather_floats(const struct cuda_step *s, const uint32_t *which, int from, int n,
                        int len, int outputs, enum cuda_type type, void *x, float *t,
                        cudaStream_t stream);

/* Filters of another type, as [K,R,R,C] when `last`, to w[K,C,R,R]. A plain array has K
 * 1, C its length, R 1. */
void cuda_widen(const void *w, int K, int C, int R, enum cuda_type type, bool last,
                float *to, cudaStream_t stream);
/* The way back, a whole block of n weights at once: of these filters, which lie in it in
 * this order, the order changes. */
enum { CUDA_FILTERS = 64 }; /* what the arguments of a kernel have room for */
struct cuda_filter {
    uint32_t from, count, C, R;
};
struct cuda_filters {
    int n;
    struct cuda_filter of[CUDA_FILTERS];
};
void cuda_narrow_all(const float *w, size_t n, const struct cuda_filters *filters,
                     enum cuda_type type, void *to, cudaStream_t stream);
/* to += from */
void cuda_add(float *to, const float *from, int64_t n, cudaStream_t stream);

/* ---- pointwise.cu ---- */

/* y = max(0, z + bias[C]), z and bias as `map` says, and its 2x2 max-pool when `arg` is
 * not NULL: y[n,C,H/2,W/2], arg the place of each maximum. y has channels last when
 * `y_last`. y may be z where nothing is pooled and both are alike. */
void cuda_bias_relu(const void *z, const float *bias, struct cuda_map map, bool y_last,
                    void *y, uint8_t *arg, cudaStream_t stream);
/* Room for partial sums, in floats: of the functions below, and of norm.cu's. */
enum { CUDA_ROOM = 1 << 17 };
/* Its way back: dz = dy * scale where y > 0 (and was the maximum), else 0; and sums[c] of
 * it over everything else: the gradient of the bias. */
void cuda_bias_relu_back(const void *y, const void *dy, const uint8_t *arg, float scale,
                         struct cuda_map map, bool y_last, void *dz, float *room,
                         float *sums, cudaStream_t stream);
/* The same for features, in place: dy = dy * scale where y > 0, else 0. y NULL: as it is.
 */
void cuda_mask_sum(const void *y, void *dy, float scale, struct cuda_map map, float *room,
                   float *sums, cudaStream_t stream);

/* As `dropout` in worker/kernels/kernels.h, with the same bits drawn: the stream of
 * layer `layer` of `layers` at step s->taken, in the step's batch `batch`. */
void cuda_dropout(void *y, int64_t n, enum cuda_type type, float p,
                  const struct cuda_step *s, int batch, int layer, int layers,
                  cudaStream_t stream);

/* y[n,C]: the mean of each channel's image; dx from dy[n,C]. */
void cuda_mean(const void *x, struct cuda_map map, void *y, cudaStream_t stream);
void cuda_mean_back(const void *dy, struct cuda_map map, void *dx, cudaStream_t stream);

/* ---- norm.cu: batch normalisation, as `norm` in worker/kernels/kernels.h ---- */

/* One of them. running: C means, C variances, how many batches were seen. saved: 4 C
 * floats that it keeps from its way forth to its way back. shared: NULL where a batch is
 * normalised by itself; else 2 C + 1 numbers, which are kept likewise. */
struct cuda_norm {
    struct cuda_map map;
    bool relu;
    float eps, momentum;
    const float *w, *bias; /* [C] */
    float *running, *saved, *room;
    double *shared;
};
/* What the batches of several ranks are normalised by together, as in
 * worker/kernels/norm_share.h: this rank's part of the sums, into `shared`. Then they are
 * to be summed over the ranks: 2 C + 1 numbers on the way forth, when it learns, and the
 * first 2 C of them on the way back. A rank may have no samples. */
void cuda_norm_measure(const struct cuda_norm *p, const void *x, cudaStream_t stream);
void cuda_norm_back_measure(const struct cuda_norm *p, const void *x, const void *y,
                            const void *dy, float *dw, float *dbias, cudaStream_t stream);
/* `learn`: by the batch's own mean and variance, which `running` follows. */
void cuda_norm(const struct cuda_norm *p, const void *x, const void *shortcut, bool learn,
               void *y, cudaStream_t stream);
/* dshortcut may be NULL. What is shared has been measured: then dw and dbias stay. */
void cuda_norm_back(const struct cuda_norm *p, const void *x, const void *y,
                    const void *dy, float *dw, float *dbias, void *dx, void *dshortcut,
                    cudaStream_t stream);

/* ---- loss.cu ---- */

/* The loss of n of the step's samples, the batch `batch` of them, and its gradient
 * (unless dy is NULL) as part of the mean over the samples of all ranks, times the
 * scaler's scale (NULL: 1). head: this rank's part of the sums; *own: its own mean;
 * batches after the first are added. One block: the order of the sum is fixed. `s` NULL:
 * a test; loss and *own are the mean of the n. */
struct cuda_loss {
    const struct cuda_step *s;
    int batch, n, K;
    enum cuda_type type; /* of dy; outputs are float */
    const struct cuda_scaler *scaler;
    struct cuda_head *head;
    float *own;
};
void cuda_softmax_loss(const struct cuda_loss *l, const float *logits,
                       const uint8_t *labels, void *dy, cudaStream_t stream);
void cuda_mse_loss(const struct cuda_loss *l, const float *y, const float *t, void *dy,
                   cudaStream_t stream);
/* *found becomes 1 where one of n numbers is not finite; else it stays. */
void cuda_find_bad(const void *x, int64_t n, enum cuda_type type, float *found,
                   cudaStream_t stream);
/* The head of a rank without samples. */
void cuda_no_loss(const struct cuda_step *s, struct cuda_head *head, float *own,
                  cudaStream_t stream);
/* The step is over: its numbers into *result, and one update more unless it was left out;
 * with `skip` a bad one is reported as skipped. `scaler` may be NULL. */
void cuda_finish(const struct cuda_head *head, const float *own, bool skip,
                 struct cuda_scaler *scaler, struct cuda_result *result,
                 uint64_t *updates, cudaStream_t stream);

/* ---- optim.cu ---- */

/* Squares of n gradients into parts[CUDA_PARTS], or added to what is there. */
enum { CUDA_PARTS = 256 };
void cuda_squares(const float *g, int64_t n, bool more, double *parts,
                  cudaStream_t stream);
/* The norm of the gradients from so many blocks of those parts, of which the ranks have
 * each their own or all the same. Not finite: the step is left out, as skipped where the
 * scaler is to blame, else as bad. *scale undoes the scaler's, and brings a norm beyond
 * `most` (0: no limit) there, as torch.nn.utils.clip_grad_norm_ does. */
void cuda_judge(const double *parts, int blocks, float most,
                const struct cuda_scaler *scaler, struct cuda_head *head, float *scale,
                cudaStream_t stream);

/* The arguments of all optimisers: n parameters w with gradients g * *scale. A step that
 * is left out by `head` changes nothing. */
struct cuda_update {
    float *w;
    const float *g;
    int64_t n;
    float decay;
    const float *scale;
    const struct cuda_step *s;
    const struct cuda_head *head;
};
/* States in the order of the optimiser's table; m may be NULL without momentum. */
void cuda_sgd(const struct cuda_update *u, float *m, float momentum, cudaStream_t stream);
/* `updates`: of the optimiser, before this one; `shrink`: AdamW's weight decay. */
void cuda_adam(const struct cuda_update *u, float *m, float *v, float b1, float b2,
               float eps, float shrink, const uint64_t *updates, cudaStream_t stream);
void cuda_adadelta(const struct cuda_update *u, float *sq, float *acc, float rho,
                   float eps, cudaStream_t stream);

/* ---- autotune.cu ---- */

/* Numbers between -1 and 1, the same for the same seed; no product of them is easy. */
void cuda_scatter(void *to, int64_t n, enum cuda_type type, uint32_t seed,
                  cudaStream_t stream);
/* The squares of n differences, and of what was expected, each in up to so many parts:
 * parts[2][CUDA_PARTS], zeroed. */
void cuda_differ(const void *is, const void *expected, int64_t n, enum cuda_type type,
                 double *parts, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
