/* worker/nn/model.h - a model: parameters in one block, forward, backward layer by layer
 *
 * All parameters lie in one block of floats and all gradients in another of the same
 * layout, so that optimiser, checkpoint and gradient reduction work on plain ranges. The
 * block for gradients is handed in by the owner (it may lie in the group's shared arena).
 * Parameter names are PyTorch's ("conv1.weight"), in PyTorch's order.
 *
 * A model type is a list of layers, read from a text with a line for each
 * (description.c): one of models/, or the user's own.
 *
 * Backward goes from the last layer to the first and reports each parameter range as its
 * gradient becomes final: that is what reduction overlaps with. Both directions can be
 * walked a range of layers at a time, and views of a model share its weights and have
 * activations of their own: with these, several batches are under way at once.
 *
 * What a model remembers beside its parameters (the running means of normalisation) is a
 * third block, of buffers. It is not learnt, and travels with checkpoints.
 */
#ifndef WORKER_NN_MODEL_H
#define WORKER_NN_MODEL_H

#include "include/ddprun/err.h"
#include "worker/kernels/kernels.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct param {
    const char *name; /* "fc1.weight" */
    int ndim, dims[4];
    size_t offset, count; /* floats, in the blocks */
};

enum task { TASK_CLASSIFY, TASK_REGRESS, TASK_TOKENS };

/* What the data look like. */
struct io_shape {
    int C, H, W; /* an input; tokens: 1, 1, how many */
    int outputs; /* classes, regression targets, or different tokens */
};

struct model; /* an instance: layers, activations for up to max_batch */

struct batch {
    const float *x;        /* [n, C, H, W] */
    const uint8_t *labels; /* [n], TASK_CLASSIFY */
    const float *targets;  /* [n, outputs], TASK_REGRESS */
    /* [n, W + 1], TASK_TOKENS: to learn is what follows each but the last */
    const uint32_t *tokens;
    int n;
};

enum layer_kind {
    LAYER_END,
    LAYER_CONV,
    LAYER_LINEAR,
    LAYER_NORM,
    LAYER_MEAN,
    LAYER_EMBED,
    LAYER_LAYER_NORM,
    LAYER_DENSE,
    LAYER_GELU,
    LAYER_ATTENTION,
    LAYER_KINDS
};

/* One layer with what follows it: its ReLU, its pooling, its dropout.
 *
 * CONV stands before linear layers and has a bias and a ReLU, unless it is `bare`: then
 * it has neither, and NORMs follow. NORM: batch normalisation. MEAN: of each channel's
 * image, the way from images to linear layers. Inputs come from the layer before, or from
 * the one `from` places back; a NORM adds what the layer `shortcut` places back gave out.
 *
 * Of tokens: EMBED, which is first, gives each `outputs` numbers, by what it is (name
 * .weight) and by where it stands ("wpe.weight"), and what is left of the last layer is
 * compared with the same numbers: tied weights. LAYER_NORM; DENSE, a linear layer whose
 * weight lies as [inputs, outputs], as GPT-2's do, and may have a shortcut; GELU;
 * ATTENTION, causal, with `size` heads, of the queries, keys and values before it. */
struct layer_spec {
    enum layer_kind kind;
    char *name;      /* owned; its parameters are NAME.weight and NAME.bias */
    int outputs;     /* channels or features; 0: as many as the data have */
    int size;        /* of a convolution's square kernel */
    int stride, pad; /* stride 0 is 1 */
    bool bare, relu, pool;
    float dropout;      /* probability, after a ReLU, before linear layers; 0: none */
    int from, shortcut; /* 0: the layer before; none */
};

struct model_type {
    char *name;
    enum task task;
    char *optimizer;           /* the default */
    struct layer_spec *layers; /* the last is LAYER_END */
    int context, vocabulary;   /* TASK_TOKENS: of a sample, and of all */
    uint64_t checksum;         /* of the text: do all ranks have the same? */
};

/* The model that `text` is the name of, for gpt2 with its sizes
 * ("gpt2:layers=4,width=128"), or the one described in the file of that path, which has a
 * '/' or ends in ".model". The caller frees. NULL with `err`, for an unknown name with a
 * list of all. */
struct model_type *model_type_find(const char *text, struct ddp_err *err);
void model_type_free(struct model_type *type); /* NULL is fine */
struct model_type *gpt2_make(const char *name, struct ddp_err *err);

/* An instance of the model `name`, for batches of up to max_batch. NULL with
 * `err` when there is none of that name or the data do not fit it. */
struct model *model_create(const char *name, struct io_shape io, int max_batch,
                           const struct kernels *kernels, struct ddp_err *err);
/* Another one over the same weights and buffers, which must outlive it, with activations
 * of its own for up to max_batch samples. Its gradients are its own until
 * model_set_grads(). */
struct model *model_create_view(struct model *of, int max_batch, struct ddp_err *err);
void model_destroy(struct model *m);

const struct model_type *model_type(const struct model *m);
const struct kernels *model_kernels(const struct model *m);
const struct param *model_params(const struct model *m, size_t *n);
size_t model_param_count(const struct model *m); /* floats in a block */
float *model_weights(struct model *m);           /* the block, owned by the model */
/* What travels beside the parameters: places in the block of model_buffer_block(). */
const struct param *model_buffers(const struct model *m, size_t *n);
float *model_buffer_block(struct model *m, size_t *count);
/* Move the weights to this block (borrowed, model_param_count() floats), before there are
 * views. */
void model_set_weights(struct model *m, float *weights);
/* Use this block for gradients (borrowed, model_param_count() floats) instead of the
 * model's own. */
void model_set_grads(struct model *m, float *grads);
float *model_grads(struct model *m);

/* A linear layer's gradient of its weight as what it is a product of: `factors` floats
 * for a batch; from those of several ranks rows of the sum can be computed (kernels.h).
 */
struct model_product {
    int layer;
    size_t offset; /* of the weight, K x C floats, in the blocks */
    int K, C;
    size_t factors;
};
int model_products(const struct model *m,
                   struct model_product *out); /* of each layer at most */
/* From now on backward leaves the layer's factors there (borrowed, on a cache line) and
 * makes no gradient of its weight. */
void model_keep_factors(struct model *m, int layer, float *factors);
/* As if a batch of no samples had gone back. */
void model_idle(struct model *m);
/* Rows [from, to) of the sum over `batches`, in their order; by any thread. */
void model_make_rows(const struct model *m, int layer, float *const *factors, int batches,
                     int from, int to, float *rows);

/* Switch dropout off (false) or on again: comparisons with another framework need steps
 * without chance. */
void model_set_dropout(struct model *m, bool on);

/* Normalise over the batches of all ranks, which must pass through the same layers in the
 * same order: norm_share() of each norm layer. A rank without samples passes forward and
 * back with n == 0: only the norm layers take part, and their gradients are 0. */
void model_share_norms(struct model *m, norm_sum_fn sum, void *arg);

/* PyTorch's initialisation. Linear and Conv2d: weights and biases uniform in
 * +-1/sqrt(fan_in), which is what kaiming_uniform_(a=sqrt(5)) comes to. A bare
 * convolution: normal with variance 2 / fan_out, as torchvision's residual networks have
 * it. A norm: 1 and 0. From `seed` alone: the same on every rank and with every engine.
 */
void model_init(struct model *m, uint64_t seed);

/* Outputs [n, outputs]; valid until the next call. */
const float *model_forward(struct model *m, const struct batch *b);

/* Forward and backward in training mode (dropout on, drawn from (seed, step)). Two ranks
 * must not drop the same units of their different samples: pass a different seed on each,
 * such as the job's seed plus the rank. Gradients are those of the mean loss over the
 * batch, times `scale`. `ready` (may be NULL) is called for each range
 * [offset, offset+count) as soon as it is final; ranges come in descending order of
 * offset and cover the block. Returns the loss; *correct counts right answers (0 for
 * TASK_REGRESS). */
float model_train_step(struct model *m, const struct batch *b, float scale, uint64_t seed,
                       uint64_t step, int *correct,
                       void (*ready)(size_t offset, size_t count, void *arg), void *arg);

/* The same in pieces, for pipeline stages: a pass through layers [from, to) forward,
 * in training mode; the loss with its gradient; and back through [from, to), from the
 * last. All of one batch come in this order, on any thread. */
struct model_pass {
    const struct batch *batch;
    float scale;
    uint64_t seed, step; /* of dropout */
    void (*ready)(size_t offset, size_t count, void *arg);
    void *arg;
};
int model_layers(const struct model *m);
/* Of dropout's random numbers, in a step: a stream for each layer. */
int model_dropout_streams(const struct model *m);
/* Floats of an input and of the outputs, per sample. */
void model_io(const struct model *m, size_t *in, size_t *out);
void model_pass_forward(struct model *m, const struct model_pass *p, int from, int to);
float model_pass_loss(struct model *m, const struct model_pass *p, int *correct);
void model_pass_back(struct model *m, const struct model_pass *p, int from, int to);

/* Of a training step, per sample: the products' alone, there and back, a multiplication
 * with its addition counted as two. */
double model_flop(const struct model *m);

/* What a layer was compiled to, to compute it on another device. */
struct model_op {
    const struct layer_spec *spec;
    const struct param *weight, *bias; /* NULL: there is none */
    int in, shortcut;                  /* layers; -1: the batch, none */
    struct map_shape given, wide, map; /* x; y before pooling; y */
    bool adds;                         /* dx is added to what is there */
};
struct model_op model_op(const struct model *m, int i);
/* Does a layer after i use the output of layer `of`? Its gradient is then there already,
 * and i adds to it. */
bool model_used_after(const struct model *m, int i, int of);
/* Gradients of activations take turns in MODEL_MAX_SLOTS buffers: slots[i] is that of
 * layer i's y where the layers [from, to) go back. A layer's is taken when the first of
 * those that follow it writes to it, or from the beginning where those are behind `to`;
 * it is given back when the layer itself has gone back. -1: there is none. False: there
 * are too few; not for a model that was created. */
enum { MODEL_MAX_SLOTS = 8 };
bool model_slots(const struct model *m, int from, int to, int *slots);

/* Where the layers are cut in `parts` of about equal work: first[0..parts], from 0 to
 * model_layers(). */
void model_split(const struct model *m, int parts, int *first);

/* Called with the duration of each layer: `phase` is 'f' or 'b', times are now_ns(). */
typedef void (*model_span_fn)(const char *layer, char phase, int64_t begin_ns,
                              int64_t end_ns, void *arg);
void model_observe(struct model *m, model_span_fn span, void *arg);

/* Where a number that is not finite may stand, in the order of computation: the data,
 * then each layer's weight, bias and output: 1 + 3 of each layer. A place as text, "the
 * output of 'conv2'" or
 * "'fc1.weight'"; how far that is: 0 in the data, then more with each layer. */
int model_tell_place(const struct model *m, int place, char *text, size_t size);
/* After a step whose loss is not finite: the first such place; -1 when there is none. */
int model_find_bad(struct model *m, const struct batch *b, char *text, size_t size);

/* How likely each token is to follow tokens[0..n), n up to W: logits of all of them,
 * until the next call. */
const float *model_next(struct model *m, const uint32_t *tokens, int n);

/* Loss and right answers without gradients and dropout. */
float model_evaluate(struct model *m, const struct batch *b, int *correct);

#endif
