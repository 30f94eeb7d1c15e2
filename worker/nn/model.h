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
#include "worker/kernels/scratch.h"
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

struct op; /* a kind of layers: model_impl.h */

/* A compiled layer. The first part is for engines of other devices, too. */
struct model_op {
    const struct layer_spec *spec;
    const struct param *weight, *bias; /* NULL: none */
    size_t nparams, nfloats;           /* its parameters, and their floats */
    int in, shortcut;                  /* layers; -1: the batch, none */
    struct map_shape given, wide, map; /* of x; of y before pooling; of y */
    bool adds, shortcut_adds; /* dx, the shortcut's gradient: added to its buffer */

    const struct op *op;
    struct conv_shape shape; /* of `conv` */
    struct conv_plan *conv;  /* at most one of the three */
    struct linear_plan *linear;
    struct norm_plan *norm;
    /* Of a linear layer, set by the caller (borrowed, aligned to cache lines): backward
     * stores the factors of its weight's gradient there (kernels.h) in place of the
     * gradient. NULL: not used */
    float *factors;
    struct param joined[2]; /* what weight and bias point to, if they are several */
    float *running;         /* a norm's, in the buffers */
    unsigned flow;          /* what y is: enum flow of model_impl.h */
    double work;            /* multiplications, per sample */
    size_t floats;          /* of y, per sample */
    float *y;               /* [max_batch, floats] */
    float *kept, *room;     /* for backward, or a table; scratch memory; NULL: none */
    int slot;               /* of y's gradient */
};

/* In floats: a block of parameters; activations and what else a batch needs. */
struct model_size {
    double params, batch;
};

enum { MODEL_MAX_SLOTS = 8 };

/* An instance: layers, activations for up to max_batch. Others read what they need. */
struct model {
    const struct model_type *type; /* borrowed */
    const struct kernels *k;
    struct io_shape io;
    int max_batch, nlayers;
    int from, to; /* rows of a sample that are computed: all but in model_next() */
    bool dropout; /* may be switched off, for comparisons with another framework */
    const struct model_pass *pass; /* that runs; NULL: a test, which learns nothing */
    struct batch batch;            /* of this pass */
    struct model_op *layers;
    struct param *params, *buffers;
    size_t nparams, nbuffers;
    size_t count, buffer_count; /* floats in the blocks */
    struct model *of;           /* owner of the weights and buffers; NULL: this one */
    float *weights, *own_weights, *buffer_block;
    float *sums;  /* the block of gradients; NULL: not used so far */
    float *grads; /* in which a pass computes them: the same, or its extra one */
    float *slots[MODEL_MAX_SLOTS]; /* gradients of activations */
    float *room;                   /* scratch memory for products of sequences */
    struct head {
        int rows;            /* at a time */
        float *logits;       /* [rows, outputs] */
        uint32_t *right;     /* [rows] */
    } head;                  /* of a model of tokens: head.c */
    double *found;           /* of class_loss(): of a batch, or of the head's rows */
    struct scratches memory; /* all the above, except own_weights */
    struct want {
        void *to; /* the address of a pointer */
        double floats;
    } * wants; /* what model_allocate() allocates */
    size_t nwants;
    struct model_size size;
};

/* Creates a model of this type, for batches of up to max_batch, without memory: only its
 * properties are known. NULL with `err` if the data do not fit it. model_allocate(): its
 * memory, if there is enough. */
struct model *model_plan(const struct model_type *type, struct io_shape io, int max_batch,
                         const struct kernels *kernels, struct ddp_err *err);
void model_allocate(struct model *m);
/* Creates a view: another instance with the same weights and buffers, which must
 * outlive it, and its own activations for up to max_batch samples. Its gradients go to
 * the block that those of `of` go to now. */
struct model *model_create_view(struct model *of, int max_batch);
void model_destroy(struct model *m);

/* Moves the weights to this block (borrowed, `count` floats), before views
 * are created. */
void model_set_weights(struct model *m, float *weights);
/* Uses this block for gradients (borrowed, `count` floats). */
void model_set_grads(struct model *m, float *grads);
/* The block; one of the model's own if none was set. */
float *model_grads(struct model *m);

/* Stores the layers' factors for a batch without samples. */
void model_idle(struct model *m);
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
/* The streams of dropout's random numbers in a micro-batch: one for each layer. */
int model_dropout_streams(const struct model *m);
void model_pass_forward(struct model *m, const struct model_pass *p, int from, int to);
/* Returns the loss; *correct counts correct answers (0 for TASK_REGRESS). */
float model_pass_loss(struct model *m, const struct model_pass *p, int *correct);
void model_pass_back(struct model *m, const struct model_pass *p, int from, int to);

/* Of a training step, per sample: of the products only, forward and backward; a
 * multiply-add counts as two. */
double model_flop(const struct model *m);

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
bool model_slots(const struct model *m, int from, int to, int *slots);

/* Splits the layers into `parts` of about equal work: first[0..parts], from 0 to
 * m->nlayers. */
void model_split(const struct model *m, int parts, int *first);

/* The places that may have a number that is not finite, in the order of computation:
 * the data, then each layer's weight, bias and output: 1 + 3 per layer. A place as
 * text, "the output of 'conv2'" or "'fc1.weight'"; its depth: 0 for the data, then
 * increasing with each layer. */
int model_tell_place(const struct model *m, int place, char *text, size_t size);
/* After a step whose loss is not finite: the first such place; -1: none. */
int model_find_bad(const struct model *m, char *text, size_t size);

/* The logits of the token that follows tokens[0..n), n up to W; valid until the next
 * call. The first `known`, fewer than n, were the first of the call before, without
 * another use of the model in between: only the others are computed. */
const float *model_next(struct model *m, const uint32_t *tokens, int known, int n);

/* Loss and number of correct answers without gradients and dropout. */
float model_evaluate(struct model *m, const struct batch *b, int *correct);

#endif
