/* worker/nn/model.c - builds a model from its list of layers, and runs it
 *
 * Each layer owns the activation it gives out, `y`, for max_batch samples. Going back,
 * two buffers of the largest size take turns: the gradient of layer i's output in one,
 * that of its input, which is layer i-1's output, in the other. Everything is allocated
 * at creation.
 */
#include "worker/nn/model.h"

#include "common/err.h"
#include "common/mem.h"
#include "worker/kernels/rng.h"
#include "worker/kernels/scratch.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct model_type *const model_types[] = {&model_linreg, &model_mlp, &model_cnn,
                                                NULL};

struct layer {
    const struct layer_spec *spec;
    struct conv_plan *conv; /* one of the two */
    struct linear_plan *linear;
    const struct param *weight, *bias;
    size_t floats; /* of y, per sample */
    float *y;      /* [max_batch, floats] */
};

struct model {
    const struct model_type *type;
    const struct kernels *k;
    struct io_shape io;
    int max_batch, nlayers;
    bool dropout;
    struct layer layers[MODEL_MAX_LAYERS];
    struct param params[2 * MODEL_MAX_LAYERS];
    size_t count; /* floats in a block */
    float *weights, *grads, *own_grads;
    float *back[2]; /* gradients of activations */
};

/* Shapes on the way through the layers. */
struct flow {
    int C, H, W;
};

static struct param *add_param(struct model *m, int index, const char *layer,
                               const char *what, int ndim, const int dims[4])
{
    struct param *p = &m->params[index];
    p->name = xasprintf("%s.%s", layer, what);
    p->ndim = ndim;
    p->offset = m->count;
    p->count = 1;
    for (int i = 0; i < ndim; i++) {
        p->dims[i] = dims[i];
        p->count *= (size_t)dims[i];
    }
    m->count += p->count;
    return p;
}

static int add_conv(struct model *m, int i, struct flow *flow, struct ddp_err *err)
{
    struct layer *l = &m->layers[i];
    const struct layer_spec *spec = l->spec;
    int least = spec->pool ? spec->size + 1 : spec->size;
    if (flow->H < least || flow->W < least)
        return err_set(err,
                       "model '%s' needs larger images than %dx%d: '%s' is given %dx%d",
                       m->type->name, m->io.H, m->io.W, spec->name, flow->H, flow->W);
    struct conv_shape s = {.B = m->max_batch,
                           .C = flow->C,
                           .H = flow->H,
                           .W = flow->W,
                           .K = spec->outputs,
                           .R = spec->size,
                           .pool = spec->pool,
                           .first = i == 0,
                           .last = spec[1].kind != LAYER_CONV};
    l->weight = add_param(m, 2 * i, spec->name, "weight", 4, (int[]){s.K, s.C, s.R, s.R});
    l->bias = add_param(m, 2 * i + 1, spec->name, "bias", 1, (int[4]){s.K});
    l->conv = m->k->conv_plan(s, err);
    if (l->conv == NULL)
        return -1;
    l->floats = m->k->conv_floats(l->conv);
    int shrink = spec->pool ? 2 : 1;
    *flow = (struct flow){s.K, (s.H - s.R + 1) / shrink, (s.W - s.R + 1) / shrink};
    return 0;
}

static int add_linear(struct model *m, int i, struct flow *flow, struct ddp_err *err)
{
    struct layer *l = &m->layers[i];
    struct linear_shape s = {.B = m->max_batch,
                             .C = flow->C * flow->H * flow->W,
                             .K = l->spec->outputs ? l->spec->outputs : m->io.outputs,
                             .relu = l->spec->relu};
    l->weight = add_param(m, 2 * i, l->spec->name, "weight", 2, (int[4]){s.K, s.C});
    l->bias = add_param(m, 2 * i + 1, l->spec->name, "bias", 1, (int[4]){s.K});
    l->linear = m->k->linear_plan(s, err);
    if (l->linear == NULL)
        return -1;
    l->floats = (size_t)s.K;
    *flow = (struct flow){s.K, 1, 1};
    return 0;
}

static int add_layers(struct model *m, struct ddp_err *err)
{
    struct flow flow = {m->io.C, m->io.H, m->io.W};
    size_t widest = 0;
    for (; m->type->layers[m->nlayers].kind != LAYER_END; m->nlayers++) {
        struct layer *l = &m->layers[m->nlayers];
        l->spec = &m->type->layers[m->nlayers];
        int rc = l->spec->kind == LAYER_CONV ? add_conv(m, m->nlayers, &flow, err)
                                             : add_linear(m, m->nlayers, &flow, err);
        if (rc < 0)
            return -1;
        size_t all = l->floats * (size_t)m->max_batch;
        l->y = scratch(all);
        widest = all > widest ? all : widest;
    }
    m->weights = scratch(m->count);
    m->grads = m->own_grads = scratch(m->count);
    m->back[0] = scratch(widest);
    m->back[1] = scratch(widest);
    return 0;
}

struct model *model_create_type(const struct model_type *type, struct io_shape io,
                                int max_batch, const struct kernels *kernels,
                                struct ddp_err *err)
{
    if (io.C < 1 || io.H < 1 || io.W < 1 || io.outputs < 1 || max_batch < 1) {
        err_set(err,
                "model '%s' cannot have inputs of %dx%dx%d, %d outputs, batches of %d",
                type->name, io.C, io.H, io.W, io.outputs, max_batch);
        return NULL;
    }
    struct model *m = xcalloc(1, sizeof(*m));
    m->type = type;
    m->k = kernels;
    m->io = io;
    m->max_batch = max_batch;
    m->dropout = true;
    if (add_layers(m, err) < 0) {
        model_destroy(m);
        return NULL;
    }
    return m;
}

struct model *model_create(const char *name, struct io_shape io, int max_batch,
                           const struct kernels *kernels, struct ddp_err *err)
{
    for (const struct model_type *const *t = model_types; *t; t++)
        if (strcmp((*t)->name, name) == 0)
            return model_create_type(*t, io, max_batch, kernels, err);
    char names[128] = "";
    for (const struct model_type *const *t = model_types; *t; t++) {
        size_t used = strlen(names);
        snprintf(names + used, sizeof(names) - used, "%s%s", used ? ", " : "",
                 (*t)->name);
    }
    err_set(err, "unknown model '%s'; there are: %s", name, names);
    return NULL;
}

void model_destroy(struct model *m)
{
    if (m == NULL)
        return;
    for (int i = 0; i < MODEL_MAX_LAYERS; i++) {
        if (m->layers[i].conv)
            m->k->conv_plan_free(m->layers[i].conv);
        if (m->layers[i].linear)
            m->k->linear_plan_free(m->layers[i].linear);
        free(m->layers[i].y);
    }
    for (size_t i = 0; i < ARRAY_LEN(m->params); i++)
        free((void *)(uintptr_t)m->params[i].name);
    free(m->weights);
    free(m->own_grads);
    free(m->back[0]);
    free(m->back[1]);
    free(m);
}

const struct model_type *model_type(const struct model *m)
{
    return m->type;
}

const struct param *model_params(const struct model *m, size_t *n)
{
    *n = 2 * (size_t)m->nlayers;
    return m->params;
}

size_t model_param_count(const struct model *m)
{
    return m->count;
}

float *model_weights(struct model *m)
{
    return m->weights;
}

void model_set_grads(struct model *m, float *grads)
{
    m->grads = grads;
}

float *model_grads(struct model *m)
{
    return m->grads;
}

void model_set_dropout(struct model *m, bool on)
{
    m->dropout = on;
}

void model_init(struct model *m, uint64_t seed)
{
    uint64_t key = rng_key(seed, 0);
    for (int i = 0; i < m->nlayers; i++) {
        const struct param *w = m->layers[i].weight, *bias = m->layers[i].bias;
        float bound = 1.0f / sqrtf((float)(w->count / (size_t)w->dims[0])); /* fan-in */
        for (size_t j = w->offset; j < bias->offset + bias->count; j++)
            m->weights[j] = (2 * rng_uniform(key, j) - 1) * bound;
    }
}

static void layer_forward(struct model *m, const struct layer *l, int n, const float *x)
{
    const float *w = m->weights + l->weight->offset, *bias = m->weights + l->bias->offset;
    if (l->conv)
        m->k->conv(l->conv, n, x, w, bias, l->y);
    else
        m->k->linear(l->linear, n, x, w, bias, l->y);
}

const float *model_forward(struct model *m, const struct batch *b)
{
    const float *x = b->x;
    for (int i = 0; i < m->nlayers; i++) {
        layer_forward(m, &m->layers[i], b->n, x);
        x = m->layers[i].y;
    }
    return x;
}

static const float *forward_dropping(struct model *m, const struct batch *b,
                                     uint64_t seed, uint64_t step)
{
    const float *x = b->x;
    for (int i = 0; i < m->nlayers; i++) {
        struct layer *l = &m->layers[i];
        layer_forward(m, l, b->n, x);
        if (m->dropout && l->spec->dropout > 0)
            m->k->dropout(l->y, (int64_t)l->floats * b->n, l->spec->dropout, seed,
                          step * MODEL_MAX_LAYERS + (uint64_t)i);
        x = l->y;
    }
    return x;
}

/* The loss of outputs y, and its gradient unless dy is NULL. */
static float loss(const struct model *m, const struct batch *b, const float *y, float *dy,
                  float scale, int *correct)
{
    *correct = 0;
    if (m->type->task == TASK_CLASSIFY)
        return m->k->softmax_loss(y, b->labels, dy, b->n, m->io.outputs, scale, correct);
    return m->k->mse_loss(y, b->targets, dy, b->n, m->io.outputs, scale);
}

float model_train_step(struct model *m, const struct batch *b, float scale, uint64_t seed,
                       uint64_t step, int *correct,
                       void (*ready)(size_t offset, size_t count, void *arg), void *arg)
{
    float *dy = m->back[0], *dx = m->back[1];
    const float *y = forward_dropping(m, b, seed, step);
    float value = loss(m, b, y, dy, scale, correct);
    for (int i = m->nlayers - 1; i >= 0; i--) {
        const struct layer *l = &m->layers[i];
        const float *x = i > 0 ? m->layers[i - 1].y : b->x;
        const float *w = m->weights + l->weight->offset;
        float *dw = m->grads + l->weight->offset, *dbias = m->grads + l->bias->offset;
        float drop = m->dropout ? l->spec->dropout : 0;
        float keep = drop > 0 ? rng_keep_scale(drop) : 1;
        if (l->conv)
            m->k->conv_back(l->conv, b->n, x, w, l->y, dy, keep, dw, dbias,
                            i > 0 ? dx : NULL);
        else
            m->k->linear_back(l->linear, b->n, x, w, l->y, dy, keep, dw, dbias,
                              i > 0 ? dx : NULL);
        if (ready)
            ready(l->weight->offset, l->weight->count + l->bias->count, arg);
        float *swap = dy;
        dy = dx;
        dx = swap;
    }
    return value;
}

float model_evaluate(struct model *m, const struct batch *b, int *correct)
{
    return loss(m, b, model_forward(m, b), NULL, 1, correct);
}
