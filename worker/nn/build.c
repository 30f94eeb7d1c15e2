/* worker/nn/build.c - from a list of layers to plans and memory: everything is allocated
 * here, and nothing in a step */
#include "common/err.h"
#include "common/mem.h"
#include "worker/kernels/scratch.h"
#include "worker/nn/model_impl.h"

#include <stdlib.h>

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

const struct param *model_add_param(struct model *m, const char *layer, const char *what,
                                    int ndim, const int dims[4])
{
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
        if (l - (s->from ? s->from : 1) == of || (s->shortcut && l - s->shortcut == of))
            return true;
    }
    return false;
}

static struct map_shape map_given(const struct model *m, const struct layer *l)
{
    return l->in < 0 ? (struct map_shape){m->io.C, m->io.H, m->io.W}
                     : m->layers[l->in].map;
}

static int add_layer(struct model *m, int i, struct ddp_err *err)
{
    static const struct op *const ops[LAYER_KINDS] = {
        [LAYER_CONV] = &op_conv,          [LAYER_LINEAR] = &op_linear,
        [LAYER_NORM] = &op_norm,          [LAYER_MEAN] = &op_mean,
        [LAYER_EMBED] = &op_embed,        [LAYER_LAYER_NORM] = &op_layer_norm,
        [LAYER_DENSE] = &op_dense,        [LAYER_GELU] = &op_gelu,
        [LAYER_ATTENTION] = &op_attention};
    struct layer *l = &m->layers[i];
    l->spec = &m->type->layers[i];
    l->op = ops[l->spec->kind];
    l->in = i - (l->spec->from ? l->spec->from : 1);
    l->shortcut = l->spec->shortcut ? i - l->spec->shortcut : -1;
    l->adds = l->in >= 0 && model_used_after(m, i, l->in);
    if (l->op->add(m, i, map_given(m, l), err) < 0)
        return -1;
    if (l->wide.C == 0)
        l->wide = l->map;
    l->y = scratch(l->floats * (size_t)m->max_batch);
    return 0;
}

/* ---- gradients of activations ---- */

static int take_slot(bool *taken)
{
    int slot = 0;
    while (slot < MODEL_MAX_SLOTS - 1 && taken[slot])
        slot++;
    taken[slot] = true;
    return slot;
}

void model_slots(const struct model *m, int from, int to, int *slots)
{
    bool taken[MODEL_MAX_SLOTS] = {false};
    for (int i = 0; i < m->nlayers; i++) {
        bool behind = i >= from && i < to && to < m->nlayers;
        slots[i] = behind && model_used_after(m, to - 1, i) ? take_slot(taken) : -1;
    }
    for (int i = to - 1; i >= from; i--) {
        const int gets[] = {i, m->layers[i].in, m->layers[i].shortcut};
        for (size_t j = 0; j < ARRAY_LEN(gets); j++)
            if (gets[j] >= 0 && slots[gets[j]] < 0)
                slots[gets[j]] = take_slot(taken);
        taken[slots[i]] = false;
    }
}

static void make_slots(struct model *m)
{
    size_t sizes[MODEL_MAX_SLOTS] = {0};
    int *slots = xcalloc((size_t)m->nlayers, sizeof *slots);
    model_slots(m, 0, m->nlayers, slots);
    for (int i = 0; i < m->nlayers; i++) {
        struct layer *l = &m->layers[i];
        size_t floats = l->floats * (size_t)m->max_batch, *size = &sizes[slots[i]];
        l->slot = slots[i];
        *size = floats > *size ? floats : *size;
    }
    free(slots);
    for (int i = 0; i < MODEL_MAX_SLOTS; i++)
        if (sizes[i])
            m->slots[i] = scratch(sizes[i]);
}

struct model_op model_op(const struct model *m, int i)
{
    const struct layer *l = &m->layers[i];
    return (struct model_op){.spec = l->spec,
                             .weight = l->weight,
                             .bias = l->bias,
                             .in = l->in,
                             .shortcut = l->shortcut,
                             .given = map_given(m, l),
                             .wide = l->wide,
                             .map = l->map,
                             .adds = l->adds};
}

/* ---- all of it ---- */

int model_build(struct model *m, struct ddp_err *err)
{
    size_t n = 0;
    while (m->type->layers[n].kind != LAYER_END)
        n++;
    m->layers = xcalloc(n, sizeof *m->layers);
    m->params = xcalloc(2 * n, sizeof *m->params);
    m->buffers = xcalloc(3 * n, sizeof *m->buffers);
    if (m->type->task == TASK_TOKENS)
        m->room = scratch(m->k->gemm_room());
    for (; (size_t)m->nlayers < n; m->nlayers++)
        if (add_layer(m, m->nlayers, err) < 0)
            return -1;
    make_slots(m);
    m->own_weights = m->of ? NULL : scratch(m->count);
    m->weights = m->of ? m->of->weights : m->own_weights;
    m->buffer_block = m->of ? m->of->buffer_block : scratch(m->buffer_count);
    m->grads = m->own_grads = m->of ? NULL : scratch(m->count);
    m->head = m->type->task == TASK_TOKENS ? head_create(m) : NULL;
    size_t at = 0;
    for (int i = 0; i < m->nlayers; i++)
        if (m->layers[i].norm) {
            m->layers[i].running = m->buffer_block + m->buffers[at].offset;
            at += 3;
        }
    return 0;
}
