/* worker/nn/build.c - builds a model from its list of layers: first the sizes of all,
 * then plans and memory, so that a step allocates nothing
 */
#include "common/err.h"
#include "common/mem.h"
#include "worker/nn/model_impl.h"

#include <math.h>
#include <string.h>

static struct param *place(struct param *p, const char *layer, const char *what, int ndim,
                           const int dims[4], size_t *block)
{
    p->name = xasprintf("%s.%s", layer, what);
    p->ndim = ndim;
    p->offset = *block;
    p->count = 1;
    for (int i = 0; i < ndim; i++) {
        p->dims[i] = dims[i];
        p->count *= (size_t)dims[i];
    }
    *block += p->count;
    return p;
}

void model_want(struct model *m, void *to, double floats)
{
    m->wants = xrealloc(m->wants, m->nwants + 1, sizeof *m->wants);
    m->wants[m->nwants++] = (struct want){to, floats};
    m->size.batch += floats;
}

const struct param *model_add_param(struct model *m, const char *layer, const char *what,
                                    int ndim, const int dims[4])
{
    double count = 1; /* the block's is of no use if it overflows */
    for (int i = 0; i < ndim; i++)
        count *= dims[i];
    m->size.params += count;
    return place(&m->params[m->nparams++], layer, what, ndim, dims, &m->count);
}

void model_add_buffer(struct model *m, const char *layer, const char *what, int ndim,
                      const int dims[4])
{
    place(&m->buffers[m->nbuffers++], layer, what, ndim, dims, &m->buffer_count);
}

bool model_used_after(const struct model *m, int i, int of)
{
    for (int l = i + 1; m->type->layers[l].kind != LAYER_END; l++) {
        const struct layer_spec *s = &m->type->layers[l];
        if (l - s->from == of || (s->shortcut && l - s->shortcut == of))
            return true;
    }
    return false;
}

/* ---- checks ---- */

static enum flow flow_given(const struct model *m, const struct model_op *l)
{
    return l->in >= 0                     ? m->layers[l->in].flow
           : m->type->task == TASK_TOKENS ? FLOW_TOKENS
                                          : FLOW_DATA;
}

static const char *input_name(const struct model *m, const struct model_op *l)
{
    return l->in >= 0 ? m->layers[l->in].spec->name : "the data";
}

/* Before a layer is added: does its kind accept its input? */
static int check_input(const struct model *m, int i, struct ddp_err *err)
{
    const struct model_op *l = &m->layers[i];
    const char *name = l->spec->name;
    if (!(l->op->takes & flow_given(m, l)))
        return layer_refuse(m, l, err, "'%s' (%s) cannot follow %s%s%s", name,
                            l->spec->kind_name, input_name(m, l),
                            l->in < 0 ? "" : ", of kind ",
                            l->in < 0 ? "" : m->layers[l->in].spec->kind_name);
    if (l->adds && !l->op->sums)
        return layer_refuse(m, l, err,
                            "'%s' (%s) must be the last to use the output of '%s'", name,
                            l->spec->kind_name, input_name(m, l));
    if (!model_used_after(m, i, i) && l->spec[1].kind != LAYER_END)
        return layer_refuse(m, l, err, "nothing uses the output of '%s'", name);
    return 0;
}

/* After it is added: has its shortcut the same shape? */
static int check_shortcut(const struct model *m, int i, struct ddp_err *err)
{
    const struct model_op *l = &m->layers[i];
    if (l->shortcut < 0)
        return 0;
    const struct model_op *to = &m->layers[l->shortcut];
    const char *why =
        to->flow != l->flow ? "is of another form"
        : to->map.C != l->map.C || to->map.H != l->map.H || to->map.W != l->map.W
            ? "has another shape"
        : l->shortcut == l->in                  ? "is its input"
        : l->op == &op_norm && l->shortcut_adds ? "is used again after it"
                                                : NULL;
    return why ? layer_refuse(m, l, err, "'%s' cannot add '%s', which %s", l->spec->name,
                              to->spec->name, why)
               : 0;
}

/* Does the last layer's output suit the loss? */
static int check_end(const struct model *m, struct ddp_err *err)
{
    const struct model_op *l = &m->layers[m->nlayers - 1];
    bool tokens = m->type->task == TASK_TOKENS;
    int wanted = tokens ? m->layers[0].spec->outputs : m->io.outputs;
    if (l->flow == FLOW_LOGITS)
        return 0;
    if (l->flow != (tokens ? FLOW_ROWS : FLOW_FEATURES))
        return layer_refuse(m, l, err, "the last layer is %s, but '%s' is %s",
                            tokens ? "one of tokens" : "linear", l->spec->name,
                            l->spec->kind_name);
    if (l->map.C * l->map.H * l->map.W != wanted)
        return layer_refuse(m, l, err, "'%s' gives %d numbers, but %s %d", l->spec->name,
                            l->map.C, tokens ? "embeddings have" : "the data need",
                            wanted);
    return 0;
}

static int add_layer(struct model *m, int i, struct ddp_err *err)
{
    static const struct op *const ops[LAYER_KINDS] = {
        [LAYER_CONV] = &op_conv,         [LAYER_LINEAR] = &op_linear,
        [LAYER_NORM] = &op_norm,         [LAYER_MEAN] = &op_mean,
        [LAYER_EMBED] = &op_embed,       [LAYER_LAYER_NORM] = &op_row_norm,
        [LAYER_RMS_NORM] = &op_row_norm, [LAYER_DENSE] = &op_dense,
        [LAYER_GELU] = &op_activation,   [LAYER_SILU] = &op_activation,
        [LAYER_ROTARY] = &op_rotary,     [LAYER_ATTENTION] = &op_attention,
        [LAYER_LOGITS] = &op_logits};
    size_t params = m->nparams, floats = m->count;
    struct model_op *l = &m->layers[i];
    l->spec = &m->type->layers[i];
    l->op = ops[l->spec->kind];
    l->in = i - l->spec->from;
    l->shortcut = l->spec->shortcut ? i - l->spec->shortcut : -1;
    l->given =
        l->in < 0 ? (struct map_shape){m->io.C, m->io.H, m->io.W} : m->layers[l->in].map;
    l->adds = l->in >= 0 && model_used_after(m, i, l->in);
    l->shortcut_adds = l->shortcut >= 0 && model_used_after(m, i, l->shortcut);
    if (check_input(m, i, err) < 0 || l->op->add(m, l, err) < 0 ||
        check_shortcut(m, i, err) < 0)
        return -1;
    l->nparams = m->nparams - params;
    l->nfloats = m->count - floats;
    if (l->wide.C == 0)
        l->wide = l->map;
    model_want(m, &l->y, (double)l->floats * m->max_batch);
    return 0;
}

/* ---- gradients of activations ---- */

/* -1: no slot is free. */
static int take_slot(bool *taken)
{
    for (int slot = 0; slot < MODEL_MAX_SLOTS; slot++)
        if (!taken[slot]) {
            taken[slot] = true;
            return slot;
        }
    return -1;
}

bool model_slots(const struct model *m, int from, int to, int *slots)
{
    bool taken[MODEL_MAX_SLOTS] = {false};
    for (int i = 0; i < m->nlayers; i++) {
        bool behind = i >= from && i < to && to < m->nlayers;
        slots[i] = behind && model_used_after(m, to - 1, i) ? take_slot(taken) : -1;
    }
    for (int i = to - 1; i >= from; i--) {
        const int gets[] = {i, m->layers[i].in, m->layers[i].shortcut};
        for (size_t j = 0; j < ARRAY_LEN(gets); j++)
            if (gets[j] >= 0 && slots[gets[j]] < 0 &&
                (slots[gets[j]] = take_slot(taken)) < 0)
                return false;
        taken[slots[i]] = false;
    }
    return true;
}

static int make_slots(struct model *m, struct ddp_err *err)
{
    double sizes[MODEL_MAX_SLOTS] = {0};
    OWNED int *slots = xcalloc((size_t)m->nlayers, sizeof *slots);
    bool enough = model_slots(m, 0, m->nlayers, slots);
    for (int i = 0; enough && i < m->nlayers; i++) {
        struct model_op *l = &m->layers[i];
        double *size = &sizes[slots[i]];
        l->slot = slots[i];
        *size = fmax(*size, (double)l->floats * m->max_batch);
    }
    for (int i = 0; i < MODEL_MAX_SLOTS; i++)
        model_want(m, &m->slots[i], sizes[i]);
    return enough ? 0
                  : err_set(err,
                            "model '%s' needs the gradients of more than %d layers' "
                            "outputs at a time",
                            m->type->name, MODEL_MAX_SLOTS);
}

/* ---- all of it ---- */

void model_allocate(struct model *m)
{
    size_t at = 0;
    m->own_weights = m->of ? NULL : scratch(m->count);
    m->weights = m->of ? m->of->weights : m->own_weights;
    m->buffer_block =
        m->of ? m->of->buffer_block : scratch_in(&m->memory, m->buffer_count);
    m->sums = m->of ? model_grads(m->of) : NULL;
    for (const struct want *w = m->wants; w < m->wants + m->nwants; w++) {
        float *block = scratch_in(&m->memory, (size_t)w->floats);
        memcpy(w->to, &block, sizeof block);
    }
    for (struct model_op *l = m->layers; l < m->layers + m->nlayers; l++) {
        if (l->op->make)
            l->op->make(m, l);
        if (l->norm) {
            l->running = m->buffer_block + m->buffers[at].offset;
            at += 3;
        }
    }
}

int model_build(struct model *m, struct ddp_err *err)
{
    size_t n = 0;
    while (m->type->layers[n].kind != LAYER_END)
        n++;
    m->layers = xcalloc(n, sizeof *m->layers);
    m->params = xcalloc(2 * n * (1 + LAYER_JOINED), sizeof *m->params);
    m->buffers = xcalloc(3 * n, sizeof *m->buffers);
    if (m->type->task == TASK_TOKENS)
        model_want(m, &m->room, (double)m->k->gemm_room());
    for (; (size_t)m->nlayers < n; m->nlayers++)
        TRY(add_layer(m, m->nlayers, err));
    TRY(check_end(m, err));
    TRY(make_slots(m, err));
    if (m->type->task == TASK_TOKENS)
        head_plan(m);
    else
        model_want(m, &m->found, 4.0 * m->max_batch);
    return 0;
}
