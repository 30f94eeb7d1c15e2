/* worker/cuda/layers.h - the layers of a model on a device: forward and backward
 *
 * Products are computed by cuBLASLt and cuDNN, all else by kernels.h. Everything is
 * launched on one stream without waiting, so that a step can be captured as a graph.
 * Descriptors and algorithms are made for one number of samples, a plan, when it comes
 * first, which allocates and so must not be during capture. There are few of those: the
 * batch, and the last one of an epoch.
 *
 * Images have their channels last, [n,H,W,C], and weights of images, too: a
 * convolution's are [K,R,R,C], those of a linear layer behind images [K,H,W,C]
 * (layers_turn()). In bf16 and fp16 the layers use a copy of the weights in that type;
 * gradients of weights, outputs and the sums of normalisation are float.
 *
 * A net is one stage of a model: the layers [from, to), with only their parameters.
 * Activations passed to and from the neighbouring stages are borders, which the caller
 * copies.
 */
#ifndef WORKER_CUDA_LAYERS_H
#define WORKER_CUDA_LAYERS_H

#include "worker/cuda/kernels.h"
#include "worker/cuda/resources.h"
#include "worker/nn/model.h"

#include <stdbool.h>

struct layers; /* layers, activations for up to max_batch */

struct layers_settings {
    int from, to; /* layers; to 0: to the last */
    int max_batch;
    bool dropout;
    /* Sums norms on the net's stream, to normalise over the batches of all ranks, which
     * must then run their layers in the same order, with 0 samples if they have none.
     * NULL: each rank by itself. */
    norm_sum_fn sum;
    /* Called when a range of gradients, with offsets in the model's block, is final where
     * the stream is now; NULL: not needed. */
    void (*ready)(size_t offset, size_t count, void *arg);
    /* Called after the kernels of a layer, "forward" or "backward", were launched; NULL:
     * not needed. */
    void (*done)(const char *layer, const char *way, void *arg);
    void *arg;      /* of these three */
    char where[16]; /* behind a layer's name in errors: ", stage 2" */
    enum precision precision;
    bool deterministic; /* only algorithms that give the same bits each time */
};

/* The range of parameters and buffers of the layers [from, to) in the model's blocks:
 * indices, and floats. `tied`: floats of the embedding's weight, if the part has the
 * logits and not the embedding, and they share the weight; a copy of it follows the
 * part's own parameters in each block. */
struct layers_part {
    size_t first, n, offset, count, tied;
    size_t buffer_offset, buffer_count;
};
struct layers_part layers_part(const struct model *model, int from, int to);

/* Copies a block of the part's weights, or of what belongs to each of them, from the
 * model's order to the device's, or back. */
void layers_turn(const struct model *model, int from, int to, const float *in, float *out,
                 bool back);

/* `model` gives shapes and names. weights: a device block of layers_part()'s
 * floats, borrowed. Memory is allocated from `memory`, on the current device, which must
 * be the same at each call. After a failure the net may only be destroyed. */
struct layers *layers_create(struct model *model, struct layers_settings settings,
                             float *weights, struct resources *memory,
                             cudaStream_t stream);
/* A view: the same layers with their own activations, for another batch in flight on
 * the same stream. It must be freed before `of`, whose plans it uses. */
struct layers *layers_create_view(struct layers *of, struct resources *memory);
void layers_destroy(struct layers *net);

/* From now on plans, those that exist included, take these algorithms: a line
 * "KEY=PLACE" for a product (struct products), borrowed; its first line counts. The
 * owner may put another text in its place. Products without a place, or whose algorithm
 * cannot be taken, keep the library's default. Runs the products of plans that change, as
 * layers_warm_up() does. */
void layers_choose(struct layers *net, char *const *choices, float *grads);
/* The place in these choices (NULL: none) for a product, or -1. */
int layers_chosen(const char *choices, const char *key);

/* Call it when the weights have changed. */
void layers_refresh(struct layers *net);

/* What the caller fills and reads. */
struct layers_ends {
    enum cuda_type type; /* of x and dy */
    void *x;        /* [max_batch] of the data's shape; tokens are [W + 1] of 32 bits */
    const float *y; /* [max_batch, outputs] */
    void *dy;
    /* Means and variances, as in the model's buffer_block from layers_part()'s offset on;
     * NULL: none. */
    float *buffers;
    float *room; /* scratch memory, of CUDA_ROOM floats: two for each sample, too */
};
struct layers_ends layers_ends(const struct layers *net);
/* For tokens, whose logits are computed in parts: the loss and, if l->s is set, the
 * gradients of the last layer's output and, as the first part of the sum in `grads`,
 * of the embedding's weight. */
void layers_token_loss(struct layers *net, const struct cuda_loss *l, float *grads);

/* An activation from a layer before `cut` that layers after it use, or its gradient. */
enum { LAYERS_BORDERS = 4 };
struct layers_border {
    void *at;
    size_t bytes; /* per sample */
};
/* The borders, or their gradients, at net's end (`cut` is its last layer's end) or at its
 * beginning; in the same order for the nets on both sides. Returns their number. */
int layers_borders(const struct layers *net, int cut, bool gradients,
                   struct layers_border out[LAYERS_BORDERS]);

/* Runs each sum of norms over the ranks once, without effect. */
void layers_warm_norms(struct layers *net);

/* n samples from the input, or the borders, to the output, or the borders, as
 * micro-batch `batch` of the step. `s` NULL: a test, without dropout. Without samples
 * only shared norms take part. */
void layers_forward(struct layers *net, int n, const struct cuda_step *s, int batch);
/* From the output's gradient, or the borders, backward into `grads`, which has the
 * layout of the weights; follows layers_forward(). */
void layers_backward(struct layers *net, int n, float *grads);

/* After a pass of n samples: which of model_tell_place()'s places have a number that is
 * not finite? The host may copy the result when the stream has reached this point. */
const float *layers_find_bad(struct layers *net, int n);

/* Runs forward and backward once for n samples, without effect: libraries load kernels
 * and may allocate at a product's first run, which is not allowed during capture. As
 * in a test, so that running means are unchanged, and without other ranks; it
 * overwrites what every step writes anew, `grads` included. */
void layers_warm_up(struct layers *net, int n, float *grads);

/* ---- autotune.c: the fastest algorithm for each product, by measurement ---- */

struct tuner {
    /* Owned: as layers_choose() takes them, of this run and of earlier ones; also for
     * products that the net does not have. NULL: none. */
    char *choices;
    int64_t left_ns; /* of the time for measuring */
    /* Numbers of products: measured; of these with a choice other than the default; not
     * measured for lack of time, which keep the default. */
    int measured, changed, late;
    double usual_us, us; /* sums over the measured products: default, chosen */
};

/* Chooses for the net's products of n samples that have no choice yet; layers_choose()
 * makes the net take the choices. Overwrites activations and gradients, also `grads`,
 * which every step writes anew. Never called during capture. */
void autotune_measure(struct tuner *t, struct layers *net, int n, float *grads);
/* A description for the user: "9 of 12 products ..."; the caller frees. */
char *autotune_describe(const struct tuner *t);

#endif
