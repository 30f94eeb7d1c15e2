/* worker/nn/model_impl.h - shared by the files of a model
 *
 * Each layer owns its output, `y`, for max_batch samples. The buffer of its gradient
 * is chosen when the model is built.
 */
#ifndef WORKER_NN_MODEL_IMPL_H
#define WORKER_NN_MODEL_IMPL_H

#include "worker/kernels/rng.h"
#include "worker/nn/model.h"

/* The form of a layer's output. RECTIFIED: images after a ReLU, which the next
 * convolution uses in backward. The first layer's input is the data. */
enum flow {
    FLOW_DATA = 1,
    FLOW_TOKENS = 2,
    FLOW_IMAGES = 4,    /* in the engine's own layout */
    FLOW_RECTIFIED = 8, /* the same */
    FLOW_FEATURES = 16, /* numbers of a sample, in their order */
    FLOW_ROWS = 32,     /* the same, for each token */
    FLOW_LOGITS = 64    /* only the loss has them */
};

/* A kind of layers: its properties and functions. */
struct op {
    bool product;   /* most of its work is multiplication */
    bool sums;      /* can add its input's gradient to the buffer's contents */
    bool shares;    /* its weight may be the embedding's and the logits': the gradient
                       is added to what earlier passes left, not computed in `extra` */
    unsigned takes; /* enum flow */
    /* parameters and shapes; then, once there is enough memory, plans and tables (NULL:
     * none) */
    int (*add)(struct model *m, struct model_op *l, struct ddp_err *err);
    void (*make)(struct model *m, struct model_op *l);
    void (*init)(struct model *m, const struct model_op *l,
                 uint64_t key); /* initial values */
    /* Forward or `back`; NULL: of the logits, which the head computes */
    void (*run)(struct model *m, const struct model_op *l, bool back);
};
extern const struct op op_conv, op_linear, op_norm, op_mean, op_embed, op_row_norm,
    op_dense, op_activation, op_rotary, op_attention, op_logits;

/* Plans layers and memory; the caller has set the first fields. */
int model_build(struct model *m, struct ddp_err *err);

/* An error of a layer, with its line of the model's text. */
#define layer_refuse(m, l, err, ...) \
    description_refuse((m)->type, (l)->spec->line, err, __VA_ARGS__)

/* Memory of so many floats for the pointer at `to`. */
void model_want(struct model *m, void *to, double floats);

/* Adds a parameter, or a buffer, called LAYER.WHAT to a layer. */
const struct param *model_add_param(struct model *m, const char *layer, const char *what,
                                    int ndim, const int dims[4]);
void model_add_buffer(struct model *m, const char *layer, const char *what, int ndim,
                      const int dims[4]);

/* A parameter, its gradient in this pass, and the sum of these; NULL for none. */
static inline const float *weights_at(const struct model *m, const struct param *p)
{
    return p ? m->weights + p->offset : NULL;
}

static inline float *grads_at(const struct model *m, const struct param *p)
{
    return p ? m->grads + p->offset : NULL;
}

static inline float *sums_at(const struct model *m, const struct param *p)
{
    return p ? m->sums + p->offset : NULL;
}

/* Are the gradients of this pass added to others? */
static inline bool pass_adds(const struct model *m)
{
    return m->grads != m->sums;
}

/* A layer's input; the gradient of its output, NULL: not needed. */
static inline const float *input_of(const struct model *m, const struct model_op *l)
{
    return l->in < 0 ? m->batch.x : m->layers[l->in].y;
}

static inline float *gradient_of(const struct model *m, int layer)
{
    return layer < 0 ? NULL : m->slots[m->layers[layer].slot];
}

/* c[M,N] = a b + bias (NULL: none), or with `add` c += a b. */
static inline void model_multiply(const struct model *m, int M, int N, int K,
                                  struct matrix a, struct matrix b, const float *bias,
                                  float *c, bool add)
{
    m->k->gemm(&(struct gemm){M, N, K, a, b, bias, c, (size_t)N, add}, m->room);
}

/* The layer whose output the loss takes. */
static inline const struct model_op *model_last(const struct model *m)
{
    const struct model_op *last = &m->layers[m->nlayers - 1];
    return model_untied(m) ? &m->layers[last->in] : last;
}

static inline uint64_t model_dropout_key(const struct model *m, const struct model_op *l)
{
    return dropout_key(m->pass->seed, m->pass->draw, (int)(l - m->layers),
                       model_dropout_streams(m));
}

static inline bool model_drops(const struct model *m, const struct model_op *l)
{
    return m->dropout && m->pass && l->spec->dropout > 0;
}

/* Initial values of a parameter (NULL: none): of a normal distribution with mean 0; all
 * the same. */
void param_draw(struct model *m, const struct param *p, float deviation, uint64_t key);
void param_fill(struct model *m, const struct param *p, float value);

/* The sum of the losses that class_loss() has found for n rows; adds to *correct. */
double model_sum_losses(const double *found, int n, int *correct);

/* The head of a model of tokens (head.c): the loss of its logits, and the gradients
 * `dy` of the last layer and of the weights, NULL: not computed. */
void head_plan(struct model *m);
float head_loss(const struct model *m, float *dy, float smooth, float scale,
                int *correct);
/* The logits of one row y of the last layer; valid until the next call. */
const float *head_logits(const struct model *m, const float *y);

#endif
