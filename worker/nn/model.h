/* worker/nn/model.h - a model: parameters in one block, forward, backward layer by
 * layer
 *
 * All parameters are in one block of floats and all gradients in another of the same
 * layout, so that optimiser, checkpoint and gradient reduction work on plain ranges.
 * The owner may pass in the block for gradients (in the group's shared arena, say).
 * Parameter names are PyTorch's ("conv1.weight"), in PyTorch's order.
 *
 * A model type is a list of layers, read from a text with a line for each
 * (description.c): one of models/, or the user's own.
 *
 * Backward goes from the last layer to the first and reports each parameter range when
 * its gradient becomes final, so that reduction can overlap with it. Both directions
 * can be run on a range of layers. Views of a model share its weights and have
 * activations of their own, so that several batches can be in flight.
 *
 * State other than parameters (the running means of normalisation) is in a third
 * block, of buffers, which are saved in checkpoints but not trained.
 */
#ifndef WORKER_NN_MODEL_H
#define WORKER_NN_MODEL_H

#include "include/ddprun/err.h"
#include "worker/kernels/kernels.h"
#include "worker/report/trace.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct param {
    const char *name; /* "fc1.weight" */
    int ndim, dims[4];
    size_t offset, count; /* floats, in the blocks */
};

enum task { TASK_CLASSIFY, TASK_REGRESS, TASK_TOKENS };

/* The shape of the data. */
struct io_shape {
    int C, H, W; /* of an input; tokens: 1, 1, their number */
    int outputs; /* classes, regression targets, or size of the vocabulary */
};

struct model; /* an instance: layers, activations for up to max_batch */

struct batch {
    const float *x;         /* [n, C, H, W] */
    const uint32_t *labels; /* [n], TASK_CLASSIFY */
    const float *targets;   /* [n, outputs], TASK_REGRESS */
    /* [n, W + 1], TASK_TOKENS: each token but the first is predicted from those before it
     */
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
    LAYER_RMS_NORM,
    LAYER_DENSE,
    LAYER_GELU,
    LAYER_SILU,
    LAYER_ROTARY,
    LAYER_ATTENTION,
    LAYER_LOGITS,
    LAYER_KINDS
};

/* One layer with its ReLU, pooling and dropout; doc/models.md says what each kind does.
 * DENSE is `dense`, and with `outputs_first` `linear` of tokens; other weights with the
 * same input can then be joined to it. */
enum { LAYER_JOINED = 3 };

struct layer_spec {
    enum layer_kind kind;
    const char *kind_name;
    char *name;  /* owned; its parameters are NAME.weight and NAME.bias */
    int line;    /* of the text */
    int outputs; /* channels or features; 0: from the data's shape */
    int size;    /* of a convolution's square kernel; heads */
    int stride, pad;
    bool bare; /* no bias; a convolution has no ReLU either, and a norm follows */
    bool relu, pool;
    float dropout;      /* probability; 0: none. Of images after a ReLU, before linear
                           layers; of tokens before the sum with the shortcut, of
                           attention's weights */
    int from, shortcut; /* so many layers back; no shortcut: 0 */

    char *positions; /* owned; NULL: none */
    bool outputs_first, join, gated;
    int kv_heads, base, original;
    float factor, low, high; /* of rotary positions, with `original` */
    float eps;               /* of norms of tokens */
    struct layer_joined {
        char *name;  /* owned; NULL: none */
        int outputs; /* among `outputs` */
    } joined[LAYER_JOINED];
};

struct model_type {
    char *name, *where; /* owned; where: its text, for errors */
    enum task task;
    char *optimizer;           /* the default */
    struct layer_spec *layers; /* the last is LAYER_END */
    int context, vocabulary; /* TASK_TOKENS: tokens of a sample; size of the vocabulary */
    uint64_t checksum;       /* of the text, to compare ranks */
};

/* The model called `text`, or the one described in the file at that path, if it has a
 * '/' or ends in ".model"; then its sizes ("gpt2:layers=4,width=128"). The caller frees.
 * NULL with `err`, which lists all names if this one is unknown. */
struct model_type *model_type_find(const char *text, struct ddp_err *err);
/* The model that `text` describes, with `sizes` in place of its own: "layers=4,width=64".
 * NULL with an error that begins with `where`, "net.model", and the line. */
struct model_type *description_read(const char *name, const char *where, const char *text,
                                    const char *sizes, struct ddp_err *err);
/* Sets the error "net.model:7: ...", of a line of the text; -1. */
int description_refuse(const struct model_type *type, int line, struct ddp_err *err,
                       const char *format, ...) __attribute__((format(printf, 4, 5)));
void model_type_free(struct model_type *type); /* NULL is allowed */

/* Creates the model `name`, for batches of up to max_batch. NULL with `err` if there
 * is no such model or the data do not fit it. */
struct model *model_create(const char *name, struct io_shape io, int max_batch,
                           const struct kernels *kernels, struct ddp_err *err);
/* The same in two parts: a model of this type, borrowed, without memory, of which only
 * properties are known; and its memory, if there is enough. */
struct model *model_plan(const struct model_type *type, struct io_shape io, int max_batch,
                         const struct kernels *kernels, struct ddp_err *err);
void model_allocate(struct model *m);
/* In floats: a block of parameters; activations and what else a batch needs. */
struct model_size {
    double params, batch;
};
struct model_size model_size(const struct model *m);
/* Creates a view: another instance with the same weights and buffers, which must
 * outlive it, and its own activations for up to max_batch samples. Its gradients go to
 * the block that those of `of` go to now. */
struct model *model_create_view(struct model *of, int max_batch);
void model_destroy(struct model *m);

const struct model_type *model_type(const struct model *m);
const struct kernels *model_kernels(const struct model *m);
const struct param *model_params(const struct model *m, size_t *n);
size_t model_param_count(const struct model *m); /* floats in a block */
float *model_weights(struct model *m);           /* the block, owned by the model */
/* State beside the parameters: ranges of the block of model_buffer_block(). */
const struct param *model_buffers(const struct model *m, size_t *n);
float *model_buffer_block(struct model *m, size_t *count);
/* Moves the weights to this block (borrowed, model_param_count() floats), before views
 * are created. */
void model_set_weights(struct model *m, float *weights);
/* Uses this block for gradients (borrowed, model_param_count() floats). */
void model_set_grads(struct model *m, float *grads);
/* The block; one of the model's own if none was set. */
float *model_grads(struct model *m);

/* The gradient of a linear layer's weight as a product of two factors: `factors`
 * floats for a batch. Rows of the sum over several ranks can be computed from their
 * factors (kernels.h). */
struct model_product {
    int layer;
    size_t offset; /* of the weight, K x C floats, in the blocks */
    int K, C;
    size_t factors;
};
int model_products(const struct model *m,
                   struct model_product *out); /* one per layer at most */
/* From now on backward stores the layer's factors there (borrowed, aligned to cache
 * lines) and does not compute the gradient of its weight. */
void model_keep_factors(struct model *m, int layer, float *factors);
/* Stores the factors of a batch without samples. */
void model_idle(struct model *m);
/* Rows [from, to) of the sum over `batches`, in their order; in any thread. */
void model_make_rows(const struct model *m, int layer, float *const *factors, int batches,
                     int from, int to, float *rows);

/* Switches dropout off (false) or on, for comparisons with another framework. */
void model_set_dropout(struct model *m, bool on);

/* Normalises over the batches of all ranks, which must run the same layers in the same
 * order: norm_share() of each norm layer. A rank without samples runs forward and
 * backward with n == 0: only the norm layers take part, and its gradients are 0. */
void model_share_norms(struct model *m, norm_sum_fn sum, void *arg);

/* PyTorch's initialisation. Linear and Conv2d: weights and biases uniform in
 * +-1/sqrt(fan_in), which equals kaiming_uniform_(a=sqrt(5)). A bare convolution:
 * normal with variance 2 / fan_out, as in torchvision's residual networks. A norm: 1
 * and 0. Depends on `seed` alone: the same on every rank and with every engine. */
void model_init(struct model *m, uint64_t seed);

/* Outputs [n, outputs]; valid until the next call. */
const float *model_forward(struct model *m, const struct batch *b);

/* One batch in training mode, in parts: layers [from, to) forward; the loss with its
 * gradient; and layers [from, to) backward, from the last. The calls for one batch are
 * made in this order, in any thread. Gradients are those of the mean loss over the
 * batch, times `scale`. Dropout is drawn from (seed, draw), as rng.h describes. */
struct model_pass {
    const struct batch *batch;
    float scale, smooth; /* smooth: of the labels, kernels.h */
    uint64_t seed, draw;
    /* NULL: gradients are stored. Else they are computed in this block, as large as
     * theirs, and added to what they were. If logits have the embedding's weight
     * model_pass_loss() begins its gradient, and layer 0 adds to it. */
    float *extra;
    /* NULL, or called for each range [offset, offset + count) as soon as it is final;
     * ranges come in descending order of offset and cover the block. */
    void (*ready)(size_t offset, size_t count, void *arg);
    void *arg;
    /* Gets a span for each layer, in this row; NULL: none. */
    struct trace *trace;
    enum trace_row row;
};
int model_layers(const struct model *m);
/* The streams of dropout's random numbers in a micro-batch: one for each layer. */
int model_dropout_streams(const struct model *m);
struct io_shape model_shape(const struct model *m); /* of its data */
void model_pass_forward(struct model *m, const struct model_pass *p, int from, int to);
/* Returns the loss; *correct counts correct answers (0 for TASK_REGRESS). */
float model_pass_loss(struct model *m, const struct model_pass *p, int *correct);
void model_pass_back(struct model *m, const struct model_pass *p, int from, int to);

/* Of a training step, per sample: of the products only, forward and backward; a
 * multiply-add counts as two. */
double model_flop(const struct model *m);

/* A compiled layer, for an engine of another device. */
struct model_op {
    const struct layer_spec *spec;
    const struct param *weight, *bias; /* NULL: none */
    size_t params;                     /* of model_params(): theirs */
    int in, shortcut;                  /* layers; -1: the batch, none */
    struct map_shape given, wide, map; /* of x; of y before pooling; of y */
    bool adds, shortcut_adds; /* dx, the shortcut's gradient: added to its buffer */
    size_t buffers;           /* floats of the block of buffers */
    const float *turns;       /* of rotary positions: kernels.h; NULL: none */
};
struct model_op model_op(const struct model *m, int i);
/* What a layer of GELU or SiLU computes, with rows of C. */
struct activation model_activation(const struct layer_spec *layer, int C);
/* Have a model's logits a weight of their own, its last layer's? */
bool model_untied(const struct model *m);
/* Does a layer after i use the output of layer `of`? Then its gradient has been
 * started, and i adds to it. */
bool model_used_after(const struct model *m, int i, int of);
/* Assigns MODEL_MAX_SLOTS buffers to the gradients of activations: slots[i] is that of
 * layer i's y when the layers [from, to) run backward. A buffer is assigned when the
 * first of the layers that follow i writes to it (from the start if these are beyond
 * `to`), and is free after layer i's backward. -1: none needed. Returns false if there
 * are too few; never for a model that was created. */
enum { MODEL_MAX_SLOTS = 8 };
bool model_slots(const struct model *m, int from, int to, int *slots);

/* Splits the layers into `parts` of about equal work: first[0..parts], from 0 to
 * model_layers(). */
void model_split(const struct model *m, int parts, int *first);

/* The places that may have a number that is not finite, in the order of computation:
 * the data, then each layer's weight, bias and output: 1 + 3 per layer. A place as
 * text, "the output of 'conv2'" or "'fc1.weight'"; its depth: 0 for the data, then
 * increasing with each layer. */
int model_tell_place(const struct model *m, int place, char *text, size_t size);
/* After a step whose loss is not finite: the first such place; -1: none. */
int model_find_bad(struct model *m, const struct batch *b, char *text, size_t size);

/* The logits of the token that follows tokens[0..n), n up to W; valid until the next
 * call. The first `known`, fewer than n, were the first of the call before, without
 * another use of the model in between: only the others are computed. */
const float *model_next(struct model *m, const uint32_t *tokens, int known, int n);

/* Loss and number of correct answers without gradients and dropout. */
float model_evaluate(struct model *m, const struct batch *b, int *correct);

#endif
