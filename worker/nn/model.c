/* worker/nn/model.c - running a model; build.c makes it */
#include "worker/nn/model.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/mem.h"
#include "worker/kernels/rng.h"
#include "worker/nn/model_impl.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- creation ---- */

/* `of`: the owner of the weights; NULL: the model itself. */
static struct model *create(const struct model_type *type, struct io_shape io,
                            int max_batch, const struct kernels *kernels,
                            struct model *of, struct ddp_err *err)
{
    struct model *m = xcalloc(1, sizeof(*m));
    m->type = type;
    m->k = kernels;
    m->io = io;
    m->max_batch = max_batch;
    m->to = io.W;
    m->dropout = of ? of->dropout : true;
    m->of = of;
    if (model_build(m, err) < 0) {
        model_destroy(m);
        return NULL;
    }
    return m;
}

struct model *model_plan(const struct model_type *type, struct io_shape io, int max_batch,
                         const struct kernels *kernels, struct ddp_err *err)
{
    if (io.C > 0 && io.H > 0 && io.W > 0 && io.outputs > 0 && max_batch > 0 &&
        max_batch <= INT_MAX / io.W)
        return create(type, io, max_batch, kernels, NULL, err);
    err_set(err, "model '%s' cannot have inputs of %dx%dx%d, %d outputs, batches of %d",
            type->name, io.C, io.H, io.W, io.outputs, max_batch);
    return NULL;
}

struct model *model_create_view(struct model *of, int max_batch)
{
    struct ddp_err none; /* what was built once can be built again */
    struct model *m = create(of->type, of->io, max_batch, of->k, of, &none);
    model_allocate(m);
    return m;
}

void model_destroy(struct model *m)
{
    if (m == NULL)
        return;
    for (size_t i = 0; i < m->nparams; i++)
        free((void *)(uintptr_t)m->params[i].name);
    for (size_t i = 0; i < m->nbuffers; i++)
        free((void *)(uintptr_t)m->buffers[i].name);
    free(m->own_weights);
    scratches_free(&m->memory);
    free(m->layers);
    free(m->params);
    free(m->buffers);
    free(m->wants);
    free(m);
}

/* ---- properties ---- */

bool model_untied(const struct model *m)
{
    return m->layers[m->nlayers - 1].flow == FLOW_LOGITS;
}

void model_set_weights(struct model *m, float *weights)
{
    memcpy(weights, m->weights, m->count * sizeof(float));
    m->weights = weights;
    free(m->own_weights);
    m->own_weights = NULL;
}

void model_set_grads(struct model *m, float *grads)
{
    m->sums = m->grads = grads;
}

float *model_grads(struct model *m)
{
    if (!m->sums)
        m->sums = scratch_in(&m->memory, m->count);
    return m->sums;
}

void model_share_norms(struct model *m, norm_sum_fn sum, void *arg)
{
    for (int i = 0; i < m->nlayers; i++)
        if (m->layers[i].norm)
            m->k->norm_share(m->layers[i].norm, sum, arg);
}

double model_flop(const struct model *m)
{
    double flop = 0;
    for (int i = 0; i < m->nlayers; i++) {
        const struct model_op *l = &m->layers[i];
        if (l->op->product) /* the gradient of the data is not needed */
            flop += 2 * l->work * (l->in >= 0 ? 3 : 2);
    }
    if (m->type->task == TASK_TOKENS) /* logits */
        flop += 6.0 * m->io.W * m->io.outputs * model_last(m)->map.C;
    return flop;
}

void model_split(const struct model *m, int parts, int *first)
{
    double all = 0, before = 0;
    for (int i = 0; i < m->nlayers; i++)
        all += m->layers[i].work;
    first[0] = 0;
    int part = 1;
    for (int i = 0; i < m->nlayers && part < parts; i++) {
        double after = before + m->layers[i].work, cut = all * part / parts;
        /* before or after the layer at the cut, whichever is nearer */
        if (after >= cut) {
            int at = after - cut <= cut - before ? i + 1 : i;
            first[part] = at > first[part - 1] ? at : first[part - 1] + 1;
            part++;
        }
        before = after;
    }
    for (; part <= parts; part++)
        first[part] = m->nlayers;
}

/* ---- initial values ---- */

/* By Box and Muller, 1958. */
void param_draw(struct model *m, const struct param *p, float deviation, uint64_t key)
{
    for (size_t i = p ? p->offset : 0; p && i < p->offset + p->count; i++) {
        double radius = sqrt(-2 * log(1 - (double)rng_uniform(key, 2 * i)));
        m->weights[i] =
            (float)(radius * cos(2 * M_PI * (double)rng_uniform(key, 2 * i + 1))) *
            deviation;
    }
}

void param_fill(struct model *m, const struct param *p, float value)
{
    for (size_t i = 0; p && i < p->count; i++)
        m->weights[p->offset + i] = value;
}

void model_init(struct model *m, uint64_t seed)
{
    for (int i = 0; i < m->nlayers; i++)
        if (m->layers[i].weight)
            m->layers[i].op->init(m, &m->layers[i], rng_key(seed, 0));
}

/* ---- forward ---- */

static void begin_part(struct model *m, const struct model_pass *p)
{
    float *sums = model_grads(m);
    m->pass = p;
    m->batch = *p->batch;
    m->grads = p->extra ? p->extra : sums;
}

/* Then dropout, and of tokens the sum with the shortcut. */
static void layer_forward(struct model *m, const struct model_op *l)
{
    int64_t floats = (int64_t)l->floats * m->batch.n;
    if (l->op->run)
        l->op->run(m, l, false);
    if (model_drops(m, l) && l->op != &op_attention)
        m->k->dropout(l->y, floats, l->spec->dropout, model_dropout_key(m, l));
    if (l->flow == FLOW_ROWS && l->shortcut >= 0) {
        size_t at = (size_t)m->from * (size_t)l->map.C;
        m->k->add(l->y + at, m->layers[l->shortcut].y + at,
                  (int64_t)(m->to - m->from) * l->map.C * m->batch.n);
    }
}

const float *model_forward(struct model *m, const struct batch *b)
{
    m->pass = NULL;
    m->batch = *b;
    for (int i = 0; i < m->nlayers; i++)
        layer_forward(m, &m->layers[i]);
    return model_last(m)->y;
}

static void trace_layer(const struct model_pass *p, const struct model_op *l,
                        const char *way, int64_t began)
{
    char what[TRACE_NAME];
    if (!p->trace)
        return;
    snprintf(what, sizeof what, "%s %s", l->spec->name, way);
    trace_span(p->trace, p->row, what, 0, began, now_ns());
}

int model_dropout_streams(const struct model *m)
{
    enum { LEAST = 64 };
    return m->nlayers > LEAST ? m->nlayers : LEAST;
}

void model_pass_forward(struct model *m, const struct model_pass *p, int from, int to)
{
    begin_part(m, p);
    for (int i = from; i < to; i++) {
        const struct model_op *l = &m->layers[i];
        int64_t began = now_ns();
        if (p->batch->n == 0 && !l->norm)
            continue;
        layer_forward(m, l);
        trace_layer(p, l, "forward", began);
    }
}

/* ---- backward ---- */

double model_sum_losses(const double *found, int n, int *correct)
{
    double loss = 0;
    for (int i = 0; i < n; i++) {
        loss += found[2 * i];
        *correct += found[2 * i + 1] > 0;
    }
    return loss;
}

static float class_loss(const struct model *m, const float *y, float *dy, float smooth,
                        float scale, int *correct)
{
    int n = m->batch.n, K = m->io.outputs;
    float *logits = dy ? memcpy(dy, y, (size_t)n * (size_t)K * sizeof *y)
                       : (float *)(uintptr_t)y; /* which stays as it is */
    m->k->class_loss(n, K, logits, m->batch.labels, smooth, dy ? scale / (float)n : 0,
                     m->found);
    return (float)(model_sum_losses(m->found, n, correct) / n);
}

/* The mean of (y - target)^2. */
static float square_loss(const struct model *m, const float *y, float *dy, float scale)
{
    double loss = 0;
    size_t all = (size_t)m->batch.n * (size_t)m->io.outputs;
    for (size_t i = 0; i < all; i++) {
        float d = y[i] - m->batch.targets[i];
        loss += (double)d * (double)d;
        if (dy)
            dy[i] = 2 * d * scale / (float)all;
    }
    return (float)(loss / (double)all);
}

/* The loss of outputs y, and its gradient unless dy is NULL. */
static float loss(const struct model *m, const float *y, float *dy, float smooth,
                  float scale, int *correct)
{
    *correct = 0;
    if (m->type->task == TASK_TOKENS)
        return head_loss(m, dy, smooth, scale, correct);
    return m->type->task == TASK_CLASSIFY ? class_loss(m, y, dy, smooth, scale, correct)
                                          : square_loss(m, y, dy, scale);
}

float model_pass_loss(struct model *m, const struct model_pass *p, int *correct)
{
    const struct model_op *last = model_last(m);
    begin_part(m, p);
    return loss(m, last->y, m->slots[last->slot], p->smooth, p->scale, correct);
}

/* The gradients of the sum and of dropout, and then the layer's own. */
static void layer_back(struct model *m, const struct model_op *l)
{
    int64_t floats = (int64_t)l->floats * m->batch.n;
    float *dy = m->slots[l->slot];
    if (l->flow == FLOW_ROWS && l->shortcut >= 0) {
        float *to = gradient_of(m, l->shortcut);
        if (l->shortcut_adds)
            m->k->add(to, dy, floats);
        else
            memcpy(to, dy, (size_t)floats * sizeof *dy);
    }
    if (model_drops(m, l) && l->op != &op_attention)
        m->k->dropout(dy, floats, l->spec->dropout, model_dropout_key(m, l));
    if (l->op->run)
        l->op->run(m, l, true);
}

void model_pass_back(struct model *m, const struct model_pass *p, int from, int to)
{
    begin_part(m, p);
    for (int i = to - 1; i >= from; i--) {
        const struct model_op *l = &m->layers[i];
        int64_t began = now_ns();
        if (p->batch->n > 0 || l->norm || l->factors)
            layer_back(m, l);
        trace_layer(p, l, "backward", began);
        if (!l->weight)
            continue;
        size_t at = l->weight->offset, n = l->nfloats;
        if (p->extra && p->batch->n > 0 && !l->op->shares)
            m->k->add(m->sums + at, p->extra + at, (int64_t)n);
        if (p->ready)
            p->ready(at, n, p->arg);
    }
}

void model_idle(struct model *m)
{
    m->batch.n = 0;
    for (int i = 0; i < m->nlayers; i++)
        if (m->layers[i].factors)
            m->layers[i].op->run(m, &m->layers[i], true);
}

float model_evaluate(struct model *m, const struct batch *b, int *correct)
{
    return loss(m, model_forward(m, b), NULL, 0, 1, correct);
}

/* The rows of earlier tokens, with their keys and values, are still in the layers'
 * outputs. */
const float *model_next(struct model *m, const uint32_t *tokens, int known, int n)
{
    m->from = known;
    m->to = n;
    const float *y = model_forward(m, &(struct batch){.tokens = tokens, .n = 1});
    m->from = 0;
    m->to = m->io.W;
    return head_logits(m, y + (size_t)(n - 1) * (size_t)model_last(m)->map.C);
}

/* ---- finding NaNs ---- */

int model_tell_place(const struct model *m, int place, char *text, size_t size)
{
    int i = (place - 1) / 3, part = (place - 1) % 3;
    const struct model_op *l = &m->layers[i];
    if (place == 0)
        snprintf(text, size, "the data");
    else if (part < 2)
        snprintf(text, size, "'%s'", (part == 0 ? l->weight : l->bias)->name);
    else
        snprintf(text, size, "the output of '%s'", l->spec->name);
    return place == 0 ? 0 : 2 * i + 1 + part / 2;
}

static bool is_bad(const struct model *m, int place)
{
    int part = (place - 1) % 3;
    const struct model_op *l = &m->layers[(place - 1) / 3];
    const struct param *w = part == 0 ? l->weight : l->bias;
    size_t pixels = (size_t)(m->io.C * m->io.H * m->io.W), n = (size_t)m->batch.n;
    if (place == 0)
        return m->batch.x && !m->k->finite(m->batch.x, pixels * n, false);
    if (part < 2)
        return w && !m->k->finite(m->weights + w->offset, w->count, false);
    return !m->k->finite(l->y, l->floats * n, l->flow & (FLOW_IMAGES | FLOW_RECTIFIED));
}

int model_find_bad(const struct model *m, char *text, size_t size)
{
    for (int place = 0; place < 1 + 3 * m->nlayers; place++)
        if (is_bad(m, place))
            return model_tell_place(m, place, text, size);
    return -1;
}
