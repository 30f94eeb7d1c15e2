/* worker/cuda/layers_make.c - see layers.h: shapes, memory and plans; launches nothing
 *
 * The layers, their shapes and the slots of their gradients come from the host's
 * compiled model (model_op() in worker/nn/model.h).
 */
#include "worker/cuda/layers_impl.h"

#include "common/mem.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* ---- a plan ---- */

static void product_free(struct product *p)
{
    cublasLtMatrixLayout_t layouts[] = {p->a, p->b, p->d};
    if (p->op)
        cublasLtMatmulDescDestroy(p->op);
    for (size_t i = 0; i < ARRAY_LEN(layouts); i++) {
        if (layouts[i])
            cublasLtMatrixLayoutDestroy(layouts[i]);
    }
}

static void layer_plan_free(struct layer_plan *p)
{
    for (int pass = 0; pass < PASSES; pass++)
        product_free(&p->products[pass]);
}

static void plan_free(struct layers_plan *p)
{
    for (int i = 0; i < CUDA_MAX_LAYERS + LOGITS; i++)
        layer_plan_free(&p->layers[i]);
    free(p);
}

/* Our own kernels need none. */
static int plan_layer(struct layers *net, int i, int n, struct layer_plan *p,
                      struct ddp_err *err)
{
    const struct products *of = net->layers[i].op->products;
    p->n = i < net->nlayers ? n : logits_rows(net, i, n);
    return of && p->n > 0 ? of->plan(net, i, p->n, p, err) : 0;
}

struct layers_plan *layers_plan(struct layers *net, int n, struct ddp_err *err)
{
    if (net->of)
        return layers_plan(net->of, n, err);
    for (int i = 0; i < net->nplans; i++) {
        if (net->plans[i]->n == n)
            return net->plans[i];
    }
    struct layers_plan *p = xcalloc(1, sizeof *p);
    p->n = n;
    for (int i = net->from; i < products_end(net) && n > 0; i++) {
        if (plan_layer(net, i, n, &p->layers[i], err) < 0) {
            plan_free(p);
            return NULL;
        }
    }
    tuned_take(net, p);
    int at = net->nplans;
    if (at < MAX_PLANS) {
        net->nplans++;
    } else { /* replaces the oldest, except the full batch's */
        at = 1 + net->oldest++ % (MAX_PLANS - 1);
        plan_free(net->plans[at]);
    }
    net->plans[at] = p;
    return p;
}

/* ---- shapes ---- */

struct layers_part layers_part(const struct model *model, int from, int to)
{
    struct layers_part part = {0};
    size_t nparams, nbuffers, before = 0;
    const struct param *params = model_params(model, &nparams);
    const struct param *buffers = model_buffers(model, &nbuffers);
    for (int i = 0; i < to; i++) {
        struct model_op op = model_op(model, i);
        size_t own = (op.weight != NULL) + (op.bias != NULL);
        size_t kept = op.spec->kind == LAYER_NORM ? 3 : 0;
        if (i == from) {
            part.offset = part.first < nparams ? params[part.first].offset : 0;
            part.buffer_offset = before < nbuffers ? buffers[before].offset : 0;
        }
        for (size_t k = 0; i >= from && k < own; k++)
            part.count += params[part.first + part.n++].count;
        for (size_t k = before; i >= from && k < before + kept; k++)
            part.buffer_count += buffers[k].count;
        part.first += i < from ? own : 0;
        before += kept;
    }
    return part;
}

static size_t elements(struct map_shape s)
{
    return (size_t)s.C * (size_t)s.H * (size_t)s.W;
}

static const struct layer_op *const ops[LAYER_KINDS] = {
    [LAYER_CONV] = &layer_conv,        [LAYER_LINEAR] = &layer_linear,
    [LAYER_NORM] = &layer_batch_norm,  [LAYER_MEAN] = &layer_mean,
    [LAYER_EMBED] = &layer_tokens,     [LAYER_LAYER_NORM] = &layer_tokens,
    [LAYER_DENSE] = &layer_linear,     [LAYER_GELU] = &layer_tokens,
    [LAYER_ATTENTION] = &layer_tokens,
};

/* `rows`: per sample. */
static struct layer shape_layer(const struct model_op *op, size_t rows)
{
    return (struct layer){.spec = op->spec,
                          .op = ops[op->spec->kind],
                          .rows = rows,
                          .weight = op->weight,
                          .bias = op->bias,
                          .in = op->in,
                          .shortcut = op->shortcut,
                          .C = op->given.C,
                          .H = op->given.H,
                          .W = op->given.W,
                          .K = op->wide.C,
                          .OH = op->wide.H,
                          .OW = op->wide.W,
                          .inputs = elements(op->given) * rows,
                          .outputs = elements(op->map) * rows,
                          .wide = elements(op->wide) * rows,
                          .adds = op->adds,
                          .slot = -1};
}

static int shape_all(struct layers *net, const struct model *model, struct ddp_err *err)
{
    size_t batch = (size_t)net->settings.max_batch;
    for (; net->nlayers < model_layers(model); net->nlayers++) {
        struct model_op op = model_op(model, net->nlayers);
        struct layer *l = &net->layers[net->nlayers];
        *l = shape_layer(&op, net->tokens ? (size_t)net->settings.io.W : 1);
        size_t most = l->inputs > l->wide ? l->inputs : l->wide;
        if (most * batch >= (size_t)1 << 31)
            return err_set(err,
                           "'%s' of %zu samples is too large for the cuda engine: "
                           "try a smaller --batch-size",
                           l->spec->name, batch);
    }
    return 0;
}

/* Finds a workspace with which each convolution has an engine. */
static int choose_workspace(struct layers *net, struct ddp_err *err)
{
    enum { LARGER = 4, LARGEST = 64 };
    int rc = -1;
    for (size_t k = 1; k <= LARGEST && rc < 0; k *= LARGER) {
        net->workspace_bytes = k * WORKSPACE;
        rc = 0;
        for (int i = net->from; i < net->to && rc == 0; i++) {
            struct layer_plan p = {0};
            rc = is_conv(&net->layers[i])
                     ? plan_layer(net, i, net->settings.max_batch, &p, err)
                     : 0;
        }
    }
    return rc;
}

/* The weights of layer i for each output: C channels of so many places. */
static void weight_shape(const struct model_op *op, size_t *C, size_t *places)
{
    bool conv = op->spec->kind == LAYER_CONV, linear = op->spec->kind == LAYER_LINEAR;
    *C = (size_t)op->given.C;
    *places = conv     ? (size_t)op->spec->size * (size_t)op->spec->size
              : linear ? (size_t)op->given.H * (size_t)op->given.W
                       : 1;
}

void layers_turn(const struct model *model, int from, int to, const float *in, float *out,
                 bool back)
{
    struct layers_part part = layers_part(model, from, to);
    memcpy(out, in, part.count * sizeof *out);
    for (int i = from; i < to; i++) {
        struct model_op op = model_op(model, i);
        size_t C, places, rows, at = op.weight ? op.weight->offset - part.offset : 0;
        weight_shape(&op, &C, &places);
        for (rows = op.weight && C > 1 && places > 1 ? op.weight->count / C / places : 0;
             rows > 0; rows--, at += C * places)
            for (size_t c = 0; c < C; c++)
                for (size_t p = 0; p < places; p++) {
                    size_t model_order = at + c * places + p, ours = at + p * C + c;
                    out[back ? model_order : ours] = in[back ? ours : model_order];
                }
    }
}

/* ---- memory ---- */

/* Does a layer from `cut` on use the output of layer `of`, before it? */
static bool crosses(const struct layers *net, int of, int cut)
{
    return of < cut && cut < net->nlayers && model_used_after(net->host, cut - 1, of);
}

static int take_slots(struct layers *net, struct device_memory *memory,
                      struct ddp_err *err)
{
    int slots[CUDA_MAX_LAYERS];
    size_t sizes[MODEL_MAX_SLOTS] = {0};
    size_t each = (size_t)net->settings.max_batch * type_size(net->type);
    model_slots(net->host, net->from, net->to, slots);
    for (int i = 0; i < net->nlayers; i++) {
        struct layer *l = &net->layers[i];
        l->slot = slots[i];
        if (l->slot >= 0 && l->outputs > sizes[l->slot])
            sizes[l->slot] = l->outputs;
    }
    for (int i = 0; i < MODEL_MAX_SLOTS; i++) {
        if (sizes[i])
            TRY(device_alloc(memory, "their gradients", sizes[i] * each, &net->slots[i],
                             err));
    }
    return 0;
}

/* The floats that a layer of ours saves for backward. */
static size_t floats_saved(const struct layer *l, size_t batch)
{
    size_t rows = l->rows * batch;
    return l->spec->kind == LAYER_NORM         ? 4 * (size_t)l->C
           : l->spec->kind == LAYER_LAYER_NORM ? 2 * rows
           : l->spec->kind == LAYER_ATTENTION  ? 2 * rows * (size_t)l->spec->size
                                               : 0;
}

static int take_activations(struct layers *net, struct device_memory *memory,
                            struct ddp_err *err)
{
    const char *what = "activations";
    size_t widest = 0, filter = 0, batch = (size_t)net->settings.max_batch;
    size_t each = batch * type_size(net->type);
    for (int i = 0; i < net->from; i++) {
        struct layer *l = &net->layers[i];
        if (crosses(net, i, net->from))
            TRY(device_alloc(memory, what, l->outputs * each, &l->y, err));
    }
    for (int i = net->from; i < net->to; i++) {
        struct layer *l = &net->layers[i];
        size_t size = batch * type_size(output_type(net, i));
        size_t saved = floats_saved(l, batch) * sizeof(float);
        TRY(device_alloc(memory, what, l->outputs * size, &l->y, err));
        if (l->spec->pool)
            TRY(device_alloc(memory, what, l->outputs * batch, &l->arg, err));
        if (saved > 0)
            TRY(device_alloc(memory, what, saved, &l->saved, err));
        if (l->spec->kind == LAYER_NORM && net->settings.share_norms)
            TRY(device_alloc(memory, what, (2 * (size_t)l->C + 1) * sizeof(double),
                             &l->shared, err));
        if (is_conv(l) && !l->spec->bare && l->wide > widest)
            widest = l->wide;
        if (is_conv(l) && l->weight->count > filter)
            filter = l->weight->count;
    }
    size_t input = net->tokens ? batch * (net->layers[0].rows + 1) * sizeof(uint32_t)
                               : net->layers[0].inputs * each;
    if (net->from == 0)
        TRY(device_alloc(memory, what, input, &net->x, err));
    if (net->of) /* views run one after the other: they share scratch memory */
        return 0;
    if (widest)
        TRY(device_alloc(memory, what, widest * each, &net->z, err));
    return net->type == CUDA_F32
               ? 0
               : device_alloc(memory, what, filter * type_size(net->type) + 1, &net->dw,
                              err);
}

/* Running means and variances, with the layout of the model's block. */
static int take_buffers(struct layers *net, struct model *model,
                        struct device_memory *memory, struct ddp_err *err)
{
    size_t nbuffers, at = 0, floats = net->part.buffer_count;
    const struct param *buffers = model_buffers(model, &nbuffers);
    if (floats == 0)
        return 0;
    TRY(device_alloc(memory, "weights", floats * sizeof(float), &net->buffers, err));
    for (int i = 0; i < net->to; i++) {
        if (net->layers[i].spec->kind != LAYER_NORM)
            continue;
        if (i >= net->from)
            net->layers[i].running =
                net->buffers + (buffers[at].offset - net->part.buffer_offset);
        at += 3;
    }
    return 0;
}

static int take_all(struct layers *net, struct model *model, struct device_memory *memory,
                    struct ddp_err *err)
{
    size_t narrow = net->part.count * type_size(net->type);
    if (net->type == CUDA_F32)
        net->narrow = (char *)net->weights;
    else if (device_alloc(memory, "weights", narrow, &net->narrow, err) < 0)
        return -1;
    TRY(take_buffers(net, model, memory, err));
    TRY(take_activations(net, memory, err));
    TRY(take_slots(net, memory, err));
    TRY(device_alloc(memory, "workspace", CUDA_ROOM * sizeof(float), &net->room, err));
    if (net->tokens)
        TRY(seq_make(net, memory, err));
    return device_alloc(memory, "workspace", net->workspace_bytes, &net->workspace, err);
}

static int check_size(const struct model *model, struct ddp_err *err)
{
    int layers = model_layers(model);
    return layers > CUDA_MAX_LAYERS
               ? err_set(err, "model '%s' has %d layers; the cuda engine takes %d",
                         model_type(model)->name, layers, CUDA_MAX_LAYERS)
               : 0;
}

struct layers *layers_create(struct model *model, struct layers_settings settings,
                             float *weights, struct device_memory *memory,
                             cudaStream_t stream, struct ddp_err *err)
{
    static const enum cuda_type types[] = {[PRECISION_FP32] = CUDA_F32,
                                           [PRECISION_BF16] = CUDA_BF16,
                                           [PRECISION_TF32] = CUDA_F32,
                                           [PRECISION_FP16] = CUDA_F16};
    if (check_size(model, err) < 0)
        return NULL;
    struct layers *net = xcalloc(1, sizeof *net);
    net->settings = settings;
    net->type = types[settings.precision];
    net->host = model;
    net->tokens = model_type(model)->task == TASK_TOKENS;
    net->from = settings.from;
    net->to = settings.to ? settings.to : model_layers(model);
    net->part = layers_part(model, net->from, net->to);
    net->stream = stream;
    net->weights = weights;
    if (check_blas(cublasLtCreate(&net->blas), "cannot start", err) < 0 ||
        check_dnn(cudnnCreate(&net->dnn), "cannot start", err) < 0 ||
        check_dnn(cudnnSetStream(net->dnn, stream), "cannot start", err) < 0 ||
        shape_all(net, model, err) < 0 || choose_workspace(net, err) < 0 ||
        take_all(net, model, memory, err) < 0) {
        layers_destroy(net);
        return NULL;
    }
    return net;
}

struct layers *layers_create_view(struct layers *of, struct device_memory *memory,
                                  struct ddp_err *err)
{
    struct layers *net = xcalloc(1, sizeof *net);
    *net = *of;
    net->of = of;
    net->nplans = 0;
    if (take_activations(net, memory, err) < 0 || take_slots(net, memory, err) < 0) {
        free(net);
        return NULL;
    }
    return net;
}

void layers_destroy(struct layers *net)
{
    if (!net)
        return;
    if (net->of) {
        free(net);
        return;
    }
    for (int i = 0; i < net->nplans; i++)
        plan_free(net->plans[i]);
    tuned_free(net);
    conv_forget(net);
    if (net->dnn)
        cudnnDestroy(net->dnn);
    if (net->blas)
        cublasLtDestroy(net->blas);
    free(net);
}

/* ---- description ---- */

int layers_borders(const struct layers *net, int cut,
                   struct layers_border out[LAYERS_BORDERS])
{
    int n = 0;
    for (int i = 0; i < cut && n < LAYERS_BORDERS; i++) {
        const struct layer *l = &net->layers[i];
        if (crosses(net, i, cut))
            out[n++] = (struct layers_border){l->y, gradient_of(net, i),
                                              l->outputs * type_size(net->type)};
    }
    return n;
}
