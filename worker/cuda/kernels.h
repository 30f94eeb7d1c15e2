/* worker/cuda/kernels.h - our own kernels, for what the libraries do not compute
 *
 * Each function launches one or a few kernels on a stream and returns. Synchronising
 * the stream does not report a rejected launch; failure.h does. All arrays are on the
 * device. Shapes and formulas are those of worker/kernels/kernels.h, and the tests
 * compare the kernels with the CPU's plain ones. The order of summation depends on the
 * shapes alone.
 *
 * Activations and their gradients have a type that is passed with them (void
 * pointers); parameters, their gradients and all sums are float.
 *
 * What changes from step to step (samples, learning rate, seeds, the loss scale) is
 * read from device memory, so that a captured graph can be replayed.
 */
#ifndef WORKER_CUDA_KERNELS_H
#define WORKER_CUDA_KERNELS_H

#include "worker/ddp/sums.h"
#include "worker/kernels/augment.h"
#include "worker/optim/optim.h"

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum cuda_type { CUDA_F32, CUDA_BF16, CUDA_F16 };

/* Activations [n,H,W,C]: channels last, as tensor cores prefer. A linear layer has C
 * features of 1x1. */
struct cuda_map {
    enum cuda_type type;
    int n, C, H, W;
};

/* A step's inputs, written by the host. `which` follows in memory: the indices of
 * `mine` samples, which locate the data unless the samples were copied in order. */
struct cuda_step {
    float lr;
    float share;           /* this rank's share of the step's samples */
    struct step_sums told; /* signals received by this rank; other fields 0 */
    int mine;              /* samples of this rank */
    uint64_t seed, draw;   /* of dropout: rng.h */
    uint64_t augment_key;
    bool in_order;
    /* data of the samples: images and labels, inputs and targets, or only tokens */
    const void *x, *t;
};

/* Padded to 256 bytes, so that the gradients behind it stay aligned. */
enum { CUDA_HEAD = 64 };
struct cuda_head {
    struct step_sums sums;
    float unused[CUDA_HEAD - sizeof(struct step_sums) / sizeof(float)];
};

/* Numbers of a step that are computed on the device. */
struct cuda_verdict {
    float scale; /* the gradients' factor: clipping and unscaling */
    float own;   /* this rank's mean loss */
    double norm; /* of the gradients, unscaled; only if they are judged */
    float unused[CUDA_HEAD - 4];
    struct cuda_head head; /* summed over the ranks */
};

/* Loss scaling for fp16: gradients are multiplied by `scale`, so that small ones do
 * not underflow. After a gradient that is not finite the step is skipped and the scale
 * halved; after CUDA_GROW good steps in a row it is doubled. (Micikevicius et al.,
 * "Mixed precision training", ICLR 2018; the constants are those of
 * torch.amp.GradScaler.) */
enum { CUDA_GROW = 2000 };
#define CUDA_FIRST_SCALE 65536.0f
#define CUDA_MOST_SCALE  16777216.0f
struct cuda_scaler {
    float scale;
    uint32_t good; /* steps since the scale changed */
};

struct cuda_result {
    struct cuda_head head; /* summed over the ranks */
    float loss;            /* this rank's own mean */
    float loss_scale;      /* for the next step; 0: no scaler */
};

/* ---- batch.cu ---- */

/* Gathers map.n of the step's samples, from `from` on. Images, stored as bytes
 * [C,H,W]: x = as_float[channel][pixel], or as floats, as_float NULL: x = pixel; shifted
 * and mirrored as `how` and s->augment_key say; and their labels. */
void cuda_gather_images(const struct cuda_step *s, const uint32_t *which, int from,
                        struct cuda_map map, struct augment how, const float *as_float,
                        void *x, uint32_t *labels, cudaStream_t stream);
/* Gathers x[n,len] of `type` and t[n,outputs] from inputs and targets. */
void cuda_gather_floats(const struct cuda_step *s, const uint32_t *which, int from, int n,
                        int len, int outputs, enum cuda_type type, void *x, float *t,
                        cudaStream_t stream);

/* Copies tokens[n, T + 1] from samples that are in the step's order. */
void cuda_gather_tokens(const struct cuda_step *s, int from, int n, int T,
                        uint32_t *tokens, cudaStream_t stream);

/* Converts n weights to another type, or gradients from it. */
void cuda_narrow(const float *w, int64_t n, enum cuda_type type, void *to,
                 cudaStream_t stream);
void cuda_widen(const void *w, int64_t n, enum cuda_type type, float *to,
                cudaStream_t stream);
/* to += from */
void cuda_add(void *to, const void *from, int64_t n, enum cuda_type type,
              cudaStream_t stream);

/* ---- pointwise.cu ---- */

/* y = max(0, z + bias[C]), z and bias as `map` says, and its 2x2 max-pool if `arg` is
 * not NULL: y[n,H/2,W/2,C], arg the position of each maximum. y may be z if there is no
 * pooling. */
void cuda_bias_relu(const void *z, const float *bias, struct cuda_map map, void *y,
                    uint8_t *arg, cudaStream_t stream);
/* Size of the buffer `room` for partial sums, in floats: of the functions below, and
 * of norm.cu's. */
enum { CUDA_ROOM = 1 << 17 };
/* The backward pass: dz = dy * scale where y > 0 (and was the maximum), else 0; and
 * sums[c], its sum over all other dimensions, the gradient of the bias. Without pooling
 * dz may be dy. y and dz NULL: only the sums, of dy. */
void cuda_bias_relu_back(const void *y, const void *dy, const uint8_t *arg, float scale,
                         struct cuda_map map, void *dz, float *room, float *sums,
                         cudaStream_t stream);

/* Dropout as in worker/kernels/kernels.h, with the same random bits for [n,C,H,W]: the
 * stream of layer `layer` of `layers`, in the step's micro-batch `batch`. */
void cuda_dropout(void *y, struct cuda_map map, float p, const struct cuda_step *s,
                  int batch, int layer, int layers, cudaStream_t stream);

/* y[n,C]: the mean of each channel's image; the backward pass gives dx from dy[n,C]. */
void cuda_mean(const void *x, struct cuda_map map, void *y, cudaStream_t stream);
void cuda_mean_back(const void *dy, struct cuda_map map, void *dx, cudaStream_t stream);

/* ---- norm.cu: batch normalisation, as `norm` in worker/kernels/kernels.h ---- */

/* A batch norm's arrays. running: C means, C variances, and the number of batches.
 * saved: 4 C floats kept from forward to backward. shared: NULL if each rank
 * normalises by itself; else 2 C + 1 numbers, kept likewise. */
struct cuda_norm {
    struct cuda_map map;
    bool relu;
    float eps, momentum;
    const float *w, *bias; /* [C] */
    float *running, *saved, *room;
    double *shared;
};
/* To be called before the other two, forward only to `learn`: measures this batch. With
 * `shared` (worker/kernels/norm_share.h) that has this rank's part of the sums, also of a
 * rank without samples, and the caller then sums over the ranks 2 C + 1 numbers in
 * forward, and the first 2 C of them in backward. */
void cuda_norm_measure(const struct cuda_norm *p, const void *x, cudaStream_t stream);
void cuda_norm_back_measure(const struct cuda_norm *p, const void *x, const void *y,
                            const void *dy, float *dw, float *dbias, cudaStream_t stream);
/* `learn`: normalise by the batch's own mean and variance, which update `running`. */
void cuda_norm(const struct cuda_norm *p, const void *x, const void *shortcut, bool learn,
               void *y, cudaStream_t stream);
/* dshortcut may be NULL. */
void cuda_norm_back(const struct cuda_norm *p, const void *x, const void *y,
                    const void *dy, void *dx, void *dshortcut, cudaStream_t stream);

/* ---- seq.cu: rows of features, one per token: [n,T,C], where `map` has T as its H and 1
 * as its W; as in worker/kernels/kernels.h ---- */

/* y = of[token] + at[position] (NULL: none), for the first T of tokens[n, T + 1]. */
void cuda_embed(const uint32_t *tokens, const float *of, const float *at,
                struct cuda_map map, void *y, cudaStream_t stream);
/* Adds to dof; dat may be NULL. */
void cuda_embed_back(const uint32_t *tokens, const void *dy, struct cuda_map map,
                     float *dof, float *dat, cudaStream_t stream);

/* kept: 2 floats per row, for backward. `rms`: with a mean of 0. */
struct cuda_row_norm {
    struct cuda_map map;
    const float *w, *bias; /* [C]; NULL: no bias */
    float *kept, *room, eps;
    bool rms;
};
void cuda_row_norm(const struct cuda_row_norm *p, const void *x, void *y,
                   cudaStream_t stream);
/* `add`: the gradient is added to dx. */
void cuda_row_norm_back(const struct cuda_row_norm *p, const void *x, const void *dy,
                        float *dw, float *dbias, void *dx, bool add, cudaStream_t stream);

/* y, whose map this is, or with dy the gradient of x. */
void cuda_activation(struct cuda_map map, struct activation f, const void *x,
                     const void *dy, void *to, cudaStream_t stream);

/* ---- attention.cu ---- */

/* Causal self-attention from qkv[n,T,heads + 2 kv_heads,D] to y[n,T,heads,D].
 * lse[n,T,heads] are the logarithms of the softmax sums, from which backward recomputes
 * the weights: no T x T matrix is stored. `s` NULL: without dropout; else as
 * cuda_dropout(), with the bits of worker/kernels/kernels.h. */
enum { CUDA_HEAD_MOST = 128 };
struct cuda_attention {
    enum cuda_type type;
    int n, T, heads, kv_heads, D; /* D up to CUDA_HEAD_MOST */
    float dropout;
    const struct cuda_step *s;
    int batch, layer, layers;
};
/* Turns queries and keys by their positions, or `back`: worker/kernels/kernels.h. */
void cuda_rotary(struct cuda_attention a, const float *turns, const void *x, void *y,
                 bool back, cudaStream_t stream);
void cuda_attention(struct cuda_attention a, const void *qkv, void *y, float *lse,
                    cudaStream_t stream);
/* `dots`: scratch memory of lse's size. */
void cuda_attention_back(struct cuda_attention a, const void *qkv, const void *y,
                         const float *lse, const void *dy, void *dqkv, float *dots,
                         cudaStream_t stream);

/* ---- loss.cu ---- */

/* The loss of n of the step's samples, its micro-batch `batch`, and its gradient
 * (unless dy is NULL) as part of the mean over the samples of all ranks, times the
 * scaler's scale (NULL: 1). The verdict's head: this rank's part of the sums; own: its
 * own mean; micro-batches after the first add to both. One block, so that the order of
 * summation is fixed. `s` NULL: a test; the loss and own are means over n. */
struct cuda_loss {
    const struct cuda_step *s;
    int batch, n, K;
    float smooth;        /* of the labels: worker/kernels/kernels.h */
    enum cuda_type type; /* of dy; outputs are float */
    const struct cuda_scaler *scaler;
    struct cuda_verdict *verdict;
};
void cuda_mse_loss(const struct cuda_loss *l, const float *y, const float *t, void *dy,
                   cudaStream_t stream);
/* For rows [from, from + rows): the cross-entropy of the label among l->K classes, and
 * the gradient of the logits, which may overwrite them. labels[n]; or, with a context,
 * the label of each of tokens[n, context + 1] but a sample's first. */
void cuda_class_loss(const struct cuda_loss *l, const float *logits,
                     const uint32_t *labels, int context, int from, int rows,
                     void *dlogits, float *losses, cudaStream_t stream);
/* Adds the losses of all rows, written by cuda_class_loss(), to the step's loss. Of 0
 * samples: the head of a rank that has none in this step. */
void cuda_class_losses(const struct cuda_loss *l, const float *losses, int context,
                       cudaStream_t stream);
/* Sets *found to 1 if one of n numbers is not finite; else leaves it. */
void cuda_find_bad(const void *x, int64_t n, enum cuda_type type, float *found,
                   cudaStream_t stream);
/* Ends a step: writes its numbers to *result and counts the update, unless it was
 * skipped. `skip`: report a bad step as skipped. `scaler` may be NULL. */
void cuda_finish(const struct cuda_verdict *v, bool skip, struct cuda_scaler *scaler,
                 struct cuda_result *result, uint64_t *updates, cudaStream_t stream);

/* ---- optim.cu ---- */

/* Sums of squares of n gradients into parts[CUDA_PARTS], or added to them. */
enum { CUDA_PARTS = 256 };
void cuda_squares(const float *g, int64_t n, bool more, double *parts,
                  cudaStream_t stream);
/* The norm of the gradients from `blocks` blocks of these parts, which are either each
 * rank's own or the same on all. If it is not finite the step is reported as skipped if
 * the loss scale is above 1 and no loss is bad, else as bad. The verdict has the norm;
 * its scale removes the loss scale, and limits the norm to `most` (0: no limit), as
 * torch.nn.utils.clip_grad_norm_ does. */
void cuda_judge(const double *parts, int blocks, float most,
                const struct cuda_scaler *scaler, struct cuda_verdict *v,
                cudaStream_t stream);

/* to = from * by; `to` may be `from` */
void cuda_scale(const float *from, int64_t n, float by, float *to, cudaStream_t stream);

/* A block of parameters w with gradients g, times the verdict's scale, and their
 * optimiser's states (NULL: not used). `updates`: made before this one. A step that the
 * verdict's head reports as bad or skipped changes nothing. */
struct cuda_update {
    float *w;
    const float *g;
    float *states[OPTIM_STATES];
    size_t first;          /* the block's place among those that the borders are of */
    const size_t *borders; /* on the device: the optimiser's */
    const uint64_t *updates;
    const struct cuda_step *s;
    const struct cuda_verdict *verdict;
};
/* Updates n parameters from `at` on; their states are from `state` on. */
void cuda_optimise(const struct cuda_update *u, const struct optim *o, size_t at,
                   size_t n, size_t state, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
