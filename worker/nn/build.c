/* worker/nn/build.c - from a list of layers to plans and memory: everything is allocated
 * here, and nothing in a step */
#include "common/err.h"
#include "common/mem.h"
#include "worker/kernels/scratch.h"
#include "worker/nn/model_impl.h"

#include <stdlib.h>

/* What a layer is given: shapes on the way through the layers. */
struct flow {
    struct map_shape map;
    bool image; /* in the engine's layout */
};

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

static struct param *add_param(struct model *m, const char *layer, const char *what,
                               int ndim, const int dims[4])
{
    return place(&m->params[m->nparams++], layer, what, ndim, dims, &m->count);
}

static void add_buffer(struct model *m, const char *layer, const char *what, int ndim,
                       const int dims[4])
{
    place(&m->buffers[m->nbuffers++], layer, what, ndim, dims, &m->buffer_count);
}

/* Does a layer after i use what layer `of` gave out? Its gradient is then there already,
 * and i adds to it. */
static bool used_after(const struct model *m, int i, int of)
{
    for (int l = i + 1; m->type->layers[l].kind != LAYER_END; l++) {
        const struct layer_spec *s = &m->type->layers[l];
        if (l - (s->from ? s->from : 1) == of || (s->shortcut && l - s->shortcut == of))
            return true;
    }
    return false;
}

static int too_small(const struct model *m, const struct layer *l, struct map_shape in,
                     struct ddp_err *err)
{
    return err_set(err, "model '%s' needs larger images than %dx%d: '%s' is given %dx%d",
                   m->type->name, m->io.H, m->io.W, l->spec->name, in.H, in.W);
}

static int add_conv(struct model *m, int i, struct flow in, struct ddp_err *err)
{
    struct layer *l = &m->layers[i];
    const struct layer_spec *spec = l->spec;
    int least = spec->pool ? spec->size + 1 : spec->size, pad = 2 * spec->pad;
    if (in.map.H + pad < least || in.map.W + pad < least)
        return too_small(m, l, in.map, err);
    struct conv_shape s = {.B = m->max_batch,
                           .C = in.map.C,
                           .H = in.map.H,
                           .W = in.map.W,
                           .K = spec->outputs,
                           .R = spec->size,
                           .stride = spec->stride ? spec->stride : 1,
                           .pad = spec->pad,
                           .pool = spec->pool,
                           .bare = spec->bare,
                           .first = l->in < 0,
                           .last = !spec->bare && spec[1].kind != LAYER_CONV,
                           .adds = l->in >= 0 && used_after(m, i, l->in)};
    l->weight = add_param(m, spec->name, "weight", 4, (int[]){s.K, s.C, s.R, s.R});
    if (!spec->bare)
        l->bias = add_param(m, spec->name, "bias", 1, (int[4]){s.K});
    l->conv = m->k->conv_plan(s, err);
    if (l->conv == NULL)
        return -1;
    l->floats = m->k->conv_floats(l->conv);
    l->image = !s.last;
    int OH = (s.H + pad - s.R) / s.stride + 1, OW = (s.W + pad - s.R) / s.stride + 1;
    l->work = (double)OH * OW * s.K * s.C * s.R * s.R;
    l->map = (struct map_shape){s.K, spec->pool ? OH / 2 : OH, spec->pool ? OW / 2 : OW};
    return 0;
}

static int add_linear(struct model *m, int i, struct flow in, struct ddp_err *err)
{
    struct layer *l = &m->layers[i];
    struct linear_shape s = {.B = m->max_batch,
                             .C = in.map.C * in.map.H * in.map.W,
                             .K = l->spec->outputs ? l->spec->outputs : m->io.outputs,
                             .relu = l->spec->relu};
    l->weight = add_param(m, l->spec->name, "weight", 2, (int[4]){s.K, s.C});
    l->bias = add_param(m, l->spec->name, "bias", 1, (int[4]){s.K});
    l->linear = m->k->linear_plan(s, err);
    if (l->linear == NULL)
        return -1;
    l->floats = (size_t)s.K;
    l->work = (double)s.K * s.C;
    l->map = (struct map_shape){s.K, 1, 1};
    return 0;
}

static int add_norm(struct model *m, int i, struct flow in, struct ddp_err *err)
{
    struct layer *l = &m->layers[i];
    const char *name = l->spec->name;
    struct norm_shape s = {.B = m->max_batch,
                           .C = in.map.C,
                           .H = in.map.H,
                           .W = in.map.W,
                           .relu = l->spec->relu,
                           .eps = 1e-5f,
                           .momentum = 0.1f};
    l->weight = add_param(m, name, "weight", 1, (int[4]){s.C});
    l->bias = add_param(m, name, "bias", 1, (int[4]){s.C});
    add_buffer(m, name, "running_mean", 1, (int[4]){s.C});
    add_buffer(m, name, "running_var", 1, (int[4]){s.C});
    add_buffer(m, name, "num_batches_tracked", 0, (int[4]){0});
    l->norm = m->k->norm_plan(s, err);
    if (l->norm == NULL)
        return -1;
    l->map = in.map;
    l->image = true;
    l->floats = m->k->map_floats(l->map);
    l->work = 4 * (double)s.C * s.H * s.W;
    return 0;
}

static int add_mean(struct model *m, int i, struct flow in, struct ddp_err *err)
{
    struct layer *l = &m->layers[i];
    l->map = (struct map_shape){in.map.C, 1, 1};
    l->floats = (size_t)in.map.C;
    l->work = (double)in.map.C * in.map.H * in.map.W;
    return 0;
}

static int add_layer(struct model *m, int i, struct ddp_err *err)
{
    static int (*const add[])(struct model *, int, struct flow,
                              struct ddp_err *) = {[LAYER_CONV] = add_conv,
                                                   [LAYER_LINEAR] = add_linear,
                                                   [LAYER_NORM] = add_norm,
                                                   [LAYER_MEAN] = add_mean};
    struct layer *l = &m->layers[i];
    l->spec = &m->type->layers[i];
    l->in = i - (l->spec->from ? l->spec->from : 1);
    l->shortcut = l->spec->shortcut ? i - l->spec->shortcut : -1;
    l->slot = -1;
    struct flow in = {{m->io.C, m->io.H, m->io.W}, false};
    if (l->in >= 0)
        in = (struct flow){m->layers[l->in].map, m->layers[l->in].image};
    if (add[l->spec->kind](m, i, in, err) < 0)
        return -1;
    l->y = scratch(l->floats * (size_t)m->max_batch);
    return 0;
}

/* ---- gradients of activations ---- */

static int take_slot(bool *taken, size_t *sizes, size_t floats)
{
    int slot = 0;
    while (slot < MODEL_MAX_SLOTS - 1 && taken[slot])
        slot++;
    taken[slot] = true;
    sizes[slot] = floats > sizes[slot] ? floats : sizes[slot];
    return slot;
}

static void assign_slots(struct model *m)
{
    bool taken[MODEL_MAX_SLOTS] = {false};
    size_t sizes[MODEL_MAX_SLOTS] = {0};
    for (int i = m->nlayers - 1; i >= 0; i--) {
        struct layer *l = &m->layers[i];
        const int to[] = {i, l->in, l->shortcut};
        for (size_t j = 0; j < ARRAY_LEN(to); j++) {
            struct layer *t = to[j] >= 0 ? &m->layers[to[j]] : NULL;
            if (t && t->slot < 0)
                t->slot = take_slot(taken, sizes, t->floats * (size_t)m->max_batch);
        }
        taken[l->slot] = false;
    }
    for (int i = 0; i < MODEL_MAX_SLOTS; i++)
        if (sizes[i])
            m->slots[i] = scratch(sizes[i]);
}

/* ---- all of it ---- */

int model_build(struct model *m, struct ddp_err *err)
{
    for (; m->type->layers[m->nlayers].kind != LAYER_END; m->nlayers++)
        if (add_layer(m, m->nlayers, err) < 0)
            return -1;
    assign_slots(m);
    m->own_weights = m->of ? NULL : scratch(m->count);
    m->weights = m->of ? m->of->weights : m->own_weights;
    m->buffer_block = m->of ? m->of->buffer_block : scratch(m->buffer_count);
    m->grads = m->own_grads = m->of ? NULL : scratch(m->count);
    size_t at = 0;
    for (int i = 0; i < m->nlayers; i++)
        if (m->layers[i].norm) {
            m->layers[i].running = m->buffer_block + m->buffers[at].offset;
            at += 3;
        }
    return 0;
}
