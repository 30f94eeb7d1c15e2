/* worker/nn/ops.c - the ops of image layers: parameters, shapes, forward, backward */
#include "common/err.h"
#include "worker/kernels/pool.h"
#include "worker/kernels/rng.h"
#include "worker/nn/model_impl.h"

#include <limits.h>
#include <math.h>

static void init_uniform(struct model *m, const struct model_op *l, uint64_t key)
{
    const struct param *w = l->weight;
    float bound = 1.0f / sqrtf((float)(w->count / (size_t)w->dims[0]));
    for (size_t i = w->offset; i < l->bias->offset + l->bias->count; i++)
        m->weights[i] = (2 * rng_uniform(key, i) - 1) * bound;
}

/* ---- convolution ---- */

/* The limits of the kernels (conv_shape in kernels.h). */
static int check_conv(const struct model *m, const struct model_op *l,
                      struct ddp_err *err)
{
    const struct layer_spec *s = l->spec;
    bool rectified = l->in >= 0 && m->layers[l->in].flow == FLOW_RECTIFIED;
    const char *why = s->bare == s->relu   ? "has a bias and a ReLU, or neither"
                      : s->pool && s->bare ? "has a bias and a ReLU if it has pooling"
                      : s->pool && (s->pad || s->stride > 1)
                          ? "has no padding and stride if it has pooling"
                      : s->pad >= s->size ? "has less padding than its size"
                      : s->dropout > 0 && (s->bare || s[1].kind != LAYER_LINEAR)
                          ? "has dropout only after its ReLU and before a linear layer"
                      : l->in >= 0 && rectified == s->bare
                          ? "has a bias and a ReLU like the one before it, or neither has"
                      : l->adds && rectified ? "must be the only one to use its input"
                                             : NULL;
    return why ? layer_refuse(m, l, err, "'%s': a convolution %s", s->name, why) : 0;
}

static int add_conv(struct model *m, struct model_op *l, struct ddp_err *err)
{
    const struct layer_spec *spec = l->spec;
    const struct conv_shape s = l->shape =
        (struct conv_shape){.B = m->max_batch,
                            .C = l->given.C,
                            .H = l->given.H,
                            .W = l->given.W,
                            .K = spec->outputs,
                            .R = spec->size,
                            .stride = spec->stride,
                            .pad = spec->pad,
                            .pool = spec->pool,
                            .bare = spec->bare,
                            .first = l->in < 0,
                            .last = !spec->bare && spec[1].kind != LAYER_CONV,
                            .adds = l->adds};
    TRY(check_conv(m, l, err));
    int least = spec->pool ? spec->size + 1 : spec->size, pad = 2 * spec->pad;
    if (l->given.H + pad < least || l->given.W + pad < least)
        return layer_refuse(
            m, l, err, "'%s' is given %dx%d: the model needs larger images than %dx%d",
            spec->name, l->given.H, l->given.W, m->io.H, m->io.W);
    l->weight = model_add_param(m, spec->name, "weight", 4, (int[]){s.K, s.C, s.R, s.R});
    if (!spec->bare)
        l->bias = model_add_param(m, spec->name, "bias", 1, (int[4]){s.K});
    l->flow = s.last ? FLOW_FEATURES : spec->bare ? FLOW_IMAGES : FLOW_RECTIFIED;
    int OH = (s.H + pad - s.R) / s.stride + 1, OW = (s.W + pad - s.R) / s.stride + 1;
    l->work = (double)OH * OW * s.K * s.C * s.R * s.R;
    l->wide = (struct map_shape){s.K, OH, OW};
    l->map = (struct map_shape){s.K, spec->pool ? OH / 2 : OH, spec->pool ? OW / 2 : OW};
    l->floats = s.last ? (size_t)s.K * (size_t)l->map.H * (size_t)l->map.W
                       : m->k->map_floats(l->map);
    double weights = (double)s.K * s.C * s.R * s.R; /* packed twice; gradients */
    m->size.batch += (2 + pool_threads()) * weights;
    return fmax((double)l->floats, weights) <= INT_MAX
               ? 0
               : layer_refuse(m, l, err, "'%s' is larger than a layer can be",
                              spec->name);
}

static void make_conv(struct model *m, struct model_op *l)
{
    l->conv = m->k->conv_plan(l->shape, &m->memory);
}

static void init_conv(struct model *m, const struct model_op *l, uint64_t key)
{
    const int *dims = l->weight->dims;
    if (l->spec->bare)
        param_draw(m, l->weight, sqrtf(2.0f / (float)(dims[0] * dims[2] * dims[3])), key);
    else
        init_uniform(m, l, key);
}

static void conv(struct model *m, const struct model_op *l, bool back)
{
    const float *x = input_of(m, l), *w = weights_at(m, l->weight);
    if (back)
        m->k->conv_back(l->conv, m->batch.n, x, w, l->y, m->slots[l->slot],
                        grads_at(m, l->weight), grads_at(m, l->bias),
                        gradient_of(m, l->in));
    else
        m->k->conv(l->conv, m->batch.n, x, w, weights_at(m, l->bias), l->y);
}

const struct op op_conv = {.product = true,
                           .sums = true,
                           .takes = FLOW_DATA | FLOW_IMAGES | FLOW_RECTIFIED,
                           .add = add_conv,
                           .make = make_conv,
                           .init = init_conv,
                           .run = conv};

/* ---- linear ---- */

static int add_linear(struct model *m, struct model_op *l, struct ddp_err *err)
{
    if (l->spec->dropout > 0 && !l->spec->relu)
        return layer_refuse(m, l, err, "'%s': dropout needs relu", l->spec->name);
    int C = l->given.C * l->given.H * l->given.W;
    int K = l->spec->outputs ? l->spec->outputs : m->io.outputs;
    l->weight = model_add_param(m, l->spec->name, "weight", 2, (int[4]){K, C});
    l->bias = model_add_param(m, l->spec->name, "bias", 1, (int[4]){K});
    l->flow = FLOW_FEATURES;
    l->floats = (size_t)K;
    l->work = (double)K * C;
    l->map = (struct map_shape){K, 1, 1};
    m->size.batch += (double)K * m->max_batch; /* the plan's */
    return 0;
}

static void make_linear(struct model *m, struct model_op *l)
{
    l->linear = m->k->linear_plan((struct linear_shape){.B = m->max_batch,
                                                        .C = l->weight->dims[1],
                                                        .K = l->weight->dims[0],
                                                        .relu = l->spec->relu},
                                  &m->memory);
}

static void linear(struct model *m, const struct model_op *l, bool back)
{
    const float *x = input_of(m, l), *w = weights_at(m, l->weight);
    if (back)
        m->k->linear_back(l->linear, m->batch.n, x, w, l->y, m->slots[l->slot],
                          grads_at(m, l->weight), l->factors, grads_at(m, l->bias),
                          gradient_of(m, l->in));
    else
        m->k->linear(l->linear, m->batch.n, x, w, weights_at(m, l->bias), l->y);
}

const struct op op_linear = {.product = true,
                             .takes = FLOW_DATA | FLOW_FEATURES,
                             .add = add_linear,
                             .make = make_linear,
                             .init = init_uniform,
                             .run = linear};

/* ---- batch normalisation ---- */

static int add_norm(struct model *m, struct model_op *l, struct ddp_err *err)
{
    const char *name = l->spec->name;
    const int C[4] = {l->given.C};
    l->weight = model_add_param(m, name, "weight", 1, C);
    l->bias = model_add_param(m, name, "bias", 1, C);
    model_add_buffer(m, name, "running_mean", 1, C);
    model_add_buffer(m, name, "running_var", 1, C);
    model_add_buffer(m, name, "num_batches_tracked", 0, (int[4]){0});
    l->map = l->given;
    l->flow = FLOW_IMAGES;
    l->floats = m->k->map_floats(l->map);
    l->work = 4 * (double)l->given.C * l->given.H * l->given.W;
    return 0;
}

static void make_norm(struct model *m, struct model_op *l)
{
    l->norm = m->k->norm_plan((struct norm_shape){.B = m->max_batch,
                                                  .C = l->map.C,
                                                  .H = l->map.H,
                                                  .W = l->map.W,
                                                  .relu = l->spec->relu,
                                                  .eps = 1e-5f,
                                                  .momentum = 0.1f},
                              &m->memory);
}

static void init_norm(struct model *m, const struct model_op *l, uint64_t key)
{
    size_t C = l->weight->count;
    param_fill(m, l->weight, 1);
    param_fill(m, l->bias, 0);
    for (size_t i = 0; i <= 2 * C; i++)
        l->running[i] = i / C == 1; /* the variances */
}

static void norm(struct model *m, const struct model_op *l, bool back)
{
    bool learn = m->pass != NULL;
    const float *x = input_of(m, l), *w = weights_at(m, l->weight);
    if (back) {
        m->k->norm_back(l->norm, m->batch.n, x, w, l->y, m->slots[l->slot],
                        grads_at(m, l->weight), grads_at(m, l->bias),
                        gradient_of(m, l->in), gradient_of(m, l->shortcut));
        return;
    }
    m->k->norm(l->norm, m->batch.n, x, w, weights_at(m, l->bias), l->running, learn,
               l->shortcut < 0 ? NULL : m->layers[l->shortcut].y, l->y);
    l->running[2 * l->weight->count] += learn;
}

const struct op op_norm = {.takes = FLOW_IMAGES,
                           .add = add_norm,
                           .make = make_norm,
                           .init = init_norm,
                           .run = norm};

/* ---- mean ---- */

static int add_mean(struct model *m, struct model_op *l, struct ddp_err *err)
{
    l->map = (struct map_shape){l->given.C, 1, 1};
    l->flow = FLOW_FEATURES;
    l->floats = (size_t)l->given.C;
    l->work = (double)l->given.C * l->given.H * l->given.W;
    return 0;
}

static void mean(struct model *m, const struct model_op *l, bool back)
{
    if (back)
        m->k->mean_back(l->given, m->batch.n, m->slots[l->slot], gradient_of(m, l->in));
    else
        m->k->mean(l->given, m->batch.n, input_of(m, l), l->y);
}

const struct op op_mean = {.takes = FLOW_IMAGES, .add = add_mean, .run = mean};
