/* worker/cuda/layers.h - the layers of a model on a device: forward, and back with
 * gradients
 *
 * Products by cuBLASLt and cuDNN, what lies between them by kernels.h. Everything is put
 * on one stream and nothing waits, so that a step can be recorded as a graph. Descriptors
 * and algorithms are made for one number of samples, a plan; there are few of those: the
 * batch, and the last one of an epoch.
 *
 * In bf16 and fp16 the layers work with a copy of the weights in that type, and images
 * have their channels last, where cuDNN can; gradients of weights, the outputs and the
 * sums of normalisation are float.
 *
 * A net is one stage of a model: the layers [from, to), with their parameters alone. What
 * goes on to the layers behind, and comes from those before, are borders; the caller
 * carries it over.
 *
 * Only algorithms are taken that give the same bits from run to run.
 */
#ifndef WORKER_CUDA_LAYERS_H
#define WORKER_CUDA_LAYERS_H

#include "worker/cuda/cuda_error.h"
#include "worker/cuda/kernels.h"
#include "worker/nn/model.h"

#include <stdbool.h>

/* Layers of a model on a device at most. */
enum { CUDA_MAX_LAYERS = 400, CUDA_PLACES = 1 + 3 * CUDA_MAX_LAYERS };

struct layers;      /* layers, activations for up to max_batch */
struct layers_plan; /* how n samples go through them; belongs to its net */

struct layers_settings {
    struct io_shape io;
    int from, to; /* layers; to 0: to the last */
    int max_batch;
    bool dropout;
    bool share_norms; /* normalise over the batches of all ranks */
    enum precision precision;
};

/* Where the layers [from, to) have their parameters and buffers in the model's blocks:
 * which ones, and floats. */
struct layers_part {
    size_t first, n, offset, count;
    size_t buffer_offset, buffer_count;
};
struct layers_part layers_part(const struct model *model, int from, int to);

/* `model` is where shapes and names come from. weights: a device block of
 * layers_part()'s count, borrowed. Memory is taken from `memory`; the device is the
 * current one, now and at each call. */
struct layers *layers_create(struct model *model, struct layers_settings settings,
                             float *weights, struct device_memory *memory,
                             cudaStream_t stream, struct ddp_err *err);
/* The same layers with activations of their own, for another batch that is under way at
 * the same time, on the same stream. Goes before `of`, which it asks for plans. */
struct layers *layers_create_view(struct layers *of, struct device_memory *memory,
                                  struct ddp_err *err);
void layers_destroy(struct layers *net);

/* The plan for n samples, made when it is asked for first. Allocates: not while a graph
 * is being recorded. 0 samples: only norms that are shared take part. */
struct layers_plan *layers_plan(struct layers *net, int n, struct ddp_err *err);

/* The weights have changed. */
void layers_refresh(struct layers *net);

/* How it lies; of tokens there are [n, W + 1], of 32 bits. */
struct cuda_map layers_input(const struct layers *net, int n);
void *layers_input_at(const struct layers *net);      /* for the caller to fill */
const float *layers_output(const struct layers *net); /* y[max_batch, outputs] */
/* dy of it in this type, for the caller to fill */
void *layers_output_grad(const struct layers *net, enum cuda_type *type);
/* Of tokens, whose logits are made in pieces: the loss, and with l->s the gradients of
 * the last layer's output and, begun in `grads`, of the embedding's weight. */
int layers_token_loss(struct layers *net, const struct layers_plan *p,
                      const struct cuda_loss *l, float *grads, struct ddp_err *err);
/* Means and variances, as in model_buffer_block(), from layers_part()'s place on; NULL
 * when there are none. */
float *layers_buffers(const struct layers *net);
/* Do images have their channels last? Stages of one model must not differ. */
bool layers_last(const struct layers *net);

/* An activation that layers behind `cut` use, and one before it gave out; and its
 * gradient. */
enum { LAYERS_BORDERS = 4 };
struct layers_border {
    void *y, *dy;
    size_t bytes; /* of a sample */
};
/* Those at net's end (`cut` its last layer's end) or its beginning; in the same order for
 * the nets on both sides. Returns how many. */
int layers_borders(const struct layers *net, int cut,
                   struct layers_border out[LAYERS_BORDERS]);

/* `done` is called behind each layer ('f' forward, 'b' backward) that was put on the
 * stream; it returns -1 to end there. */
void layers_observe(struct layers *net,
                    int (*done)(const char *layer, char phase, void *arg,
                                struct ddp_err *err),
                    void *arg);

/* Sums up n numbers over the ranks, on the stream. With `share_norms`, set before the
 * first pass. Every rank must then pass through its layers in the same order, with 0
 * samples if it has none. */
typedef int (*layers_sum_fn)(double *v, size_t n, void *arg, struct ddp_err *err);
void layers_share_norms(struct layers *net, layers_sum_fn sum, void *arg);
/* Each of these sums once, for nothing. */
int layers_warm_norms(struct layers *net, struct ddp_err *err);

/* With `bare`, from now on the libraries' products alone are put on the stream, in their
 * order, with their operands where they always are, and nothing of our own between them:
 * what a step cannot be faster than. For measuring; what comes out is of no use. */
void layers_bare(struct layers *net, bool bare);

/* From layers_input_at(), or the borders, to layers_output(), or the borders, as batch
 * `batch` of the step. `s` NULL: a test, without dropout. */
int layers_forward(struct layers *net, struct layers_plan *p, const struct cuda_step *s,
                   int batch, struct ddp_err *err);
/* From layers_output_grad(), or the borders, back, into `grads`, which lies as the
 * weights do; follows layers_forward(). `ready` as model_train_step()'s, with offsets in
 * the model's block: the range is final when the stream has come so far. It returns -1 to
 * end here. */
int layers_backward(struct layers *net, struct layers_plan *p, float *grads,
                    int (*ready)(size_t offset, size_t count, void *arg,
                                 struct ddp_err *err),
                    void *arg, struct ddp_err *err);

/* After a pass of n samples: which of model_tell_place()'s places hold a number
 * that is not finite? The answers, to be copied to the host when the stream has come so
 * far. */
const float *layers_find_bad(struct layers *net, int n, struct ddp_err *err);

/* Libraries load their kernels, and may take memory, when a product is asked for the
 * first time, and nothing of that may be while a graph is being recorded: so there and
 * back, once for a plan, for nothing. As in a test, so that running means stay, and
 * without other ranks; what is written over, `grads` too, is written anew by every step.
 */
int layers_warm_up(struct layers *net, struct layers_plan *p, float *grads,
                   struct ddp_err *err);

#endif
