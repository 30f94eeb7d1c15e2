/* worker/cuda/layers_make.c - see layers.h: shapes and memory; launches nothing
 *
 * The layers, their shapes and the slots of their gradients come from the host's
 * compiled model (worker/nn/model.h).
 */
#include "worker/cuda/layers_impl.h"

#include "common/mem.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* ---- shapes ---- */

/* Floats of the block of buffers. */
static size_t buffers_of(const struct model_op *op)
{
    return op->norm ? 2 * op->weight->count + 1 : 0;
}

struct layers_part layers_part(const struct model *model, int from, int to)
{
    struct layers_part part = {0};
    for (int i = 0; i < to; i++) {
        const struct model_op *op = &model->layers[i];
        *(i < from ? &part.first : &part.n) += op->nparams;
        *(i < from ? &part.offset : &part.count) += op->nfloats;
        *(i < from ? &part.buffer_offset : &part.buffer_count) += buffers_of(op);
    }
    if (model->type->task == TASK_TOKENS && !model_untied(model) && from > 0 &&
        to == model->nlayers)
        part.tied = model->layers[0].weight->count;
    return part;
}

static size_t elements(struct map_shape s)
{
    return (size_t)s.C * (size_t)s.H * (size_t)s.W;
}

const struct layer_op layer_ops[LAYER_KINDS] = {
    [LAYER_CONV] = {&conv_products, conv_run},
    [LAYER_LINEAR] = {&linear_products, linear_run},
    [LAYER_DENSE] = {&linear_products, linear_run},
    [LAYER_ATTENTION] = {&attention_products, attention_run},
    [LAYER_NORM] = {NULL, batch_norm_run},
    [LAYER_MEAN] = {NULL, mean_run},
    [LAYER_EMBED] = {NULL, embed_run},
    [LAYER_LAYER_NORM] = {NULL, row_norm_run},
    [LAYER_RMS_NORM] = {NULL, row_norm_run},
    [LAYER_GELU] = {NULL, activation_run},
    [LAYER_SILU] = {NULL, activation_run},
    [LAYER_ROTARY] = {NULL, rotary_run},
};

/* `rows`: per sample. */
static struct layer shape_layer(const struct model_op *op, size_t rows)
{
    return (struct layer){.spec = op->spec,
                          .rows = rows,
                          .weight = op->weight,
                          .bias = op->bias,
                          .in = op->in,
                          .shortcut = op->shortcut,
                          .given = op->given,
                          .wide = op->wide,
                          .map = op->map,
                          .inputs = elements(op->given) * rows,
                          .before = elements(op->wide) * rows,
                          .outputs = elements(op->map) * rows,
                          .adds = op->adds,
                          .shortcut_adds = op->shortcut_adds,
                          .slot = -1};
}

static void shape_all(struct layers *net, const struct model *model)
{
    size_t batch = (size_t)net->settings.max_batch;
    for (; net->nlayers < model->nlayers; net->nlayers++) {
        struct layer *l = &net->layers[net->nlayers];
        *l = shape_layer(&model->layers[net->nlayers],
                         net->tokens ? (size_t)model->io.W : 1);
        bool last = net->nlayers == model->nlayers - 1;
        l->type = last && !net->tokens ? CUDA_F32 : net->type; /* the model's outputs */
        size_t most = l->inputs > l->before ? l->inputs : l->before;
        if (most * batch >= (size_t)1 << 31)
            cuda_fail("'%s' of %zu samples is too large for the cuda engine: try a "
                      "smaller --batch-size",
                      l->spec->name, batch);
    }
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
        const struct model_op *op = &model->layers[i];
        size_t C, places, rows, at = op->weight ? op->weight->offset - part.offset : 0;
        weight_shape(op, &C, &places);
        for (rows = op->weight && C > 1 && places > 1 ? op->weight->count / C / places
                                                      : 0;
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

static void take_slots(struct layers *net, struct resources *memory)
{
    OWNED int *slots = xcalloc((size_t)net->nlayers, sizeof *slots);
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
            net->slots[i] = device_alloc(memory, "their gradients", sizes[i] * each);
    }
}

/* The floats that a layer of ours saves for backward, or has of the host's. */
static size_t floats_saved(const struct layer *l, size_t batch)
{
    size_t rows = l->rows * batch;
    enum layer_kind kind = l->spec->kind;
    return kind == LAYER_NORM        ? 4 * (size_t)l->given.C
           : kind == LAYER_ATTENTION ? 2 * rows * (size_t)l->spec->size
           : kind == LAYER_ROTARY    ? l->rows * (size_t)head_size(l)
           : kind == LAYER_LAYER_NORM || kind == LAYER_RMS_NORM ? 2 * rows
                                                                : 0;
}

static void take_activations(struct layers *net, struct resources *memory)
{
    const char *what = "activations";
    size_t widest = 0, filter = 0, queries = 0, batch = (size_t)net->settings.max_batch;
    size_t each = batch * type_size(net->type);
    for (int i = 0; i < net->from; i++) {
        struct layer *l = &net->layers[i];
        if (crosses(net, i, net->from))
            l->y = device_alloc(memory, what, l->outputs * each);
    }
    for (int i = net->from; i < net->to; i++) {
        struct layer *l = &net->layers[i];
        size_t size = batch * type_size(l->type);
        size_t saved = floats_saved(l, batch) * sizeof(float);
        const float *turns =
            l->spec->kind == LAYER_ROTARY ? net->host->layers[i].kept : NULL;
        l->y = device_alloc(memory, what, l->outputs * size);
        if (l->spec->pool)
            l->arg = device_alloc(memory, what, l->outputs * batch);
        if (saved > 0)
            l->saved = device_alloc(memory, what, saved);
        if (turns)
            CUDA(cudaMemcpy(l->saved, turns, saved, cudaMemcpyHostToDevice));
        if (l->spec->kind == LAYER_NORM && net->settings.sum)
            l->shared =
                device_alloc(memory, what, (2 * (size_t)l->given.C + 1) * sizeof(double));
        if (is_conv(l) && !l->spec->bare && l->before > widest)
            widest = l->before;
        if (is_conv(l) && l->weight->count > filter)
            filter = l->weight->count;
        if (l->spec->kind == LAYER_ATTENTION && !net->settings.deterministic &&
            l->outputs > queries)
            queries = l->outputs;
    }
    size_t input = net->tokens ? batch * (net->layers[0].rows + 1) * sizeof(uint32_t)
                               : net->layers[0].inputs * each;
    if (net->from == 0 || net->tokens) /* layers are warmed up with these zeros */
        net->x = device_alloc(memory, what, input);
    if (net->of) /* views run one after the other: they share scratch memory */
        return;
    if (widest)
        net->z = device_alloc(memory, what, widest * each);
    if (net->type == CUDA_F32)
        return;
    if (queries)
        net->dq = device_alloc(memory, what, queries * batch * sizeof(float));
    net->dw = device_alloc(memory, what, filter * type_size(net->type) + 1);
}

/* Running means and variances, with the layout of the model's block. */
static void take_buffers(struct layers *net, struct resources *memory)
{
    size_t at = 0, bytes = net->part.buffer_count * sizeof(float);
    if (bytes > 0)
        net->buffers = device_alloc(memory, "weights", bytes);
    for (int i = net->from; i < net->to; i++) {
        net->layers[i].running = net->buffers + at;
        at += buffers_of(&net->host->layers[i]);
    }
}

/* A workspace with which each product has an algorithm. */
static void take_workspace(struct layers *net, struct resources *memory)
{
    enum { LARGER = 4 };
    if (cuda_failed())
        return;
    net->workspace_bytes = WORKSPACE;
    while (!layers_plan(net, net->settings.max_batch) &&
           net->workspace_bytes * LARGER <= WORKSPACE_MOST) {
        net->workspace_bytes *= LARGER;
        cuda_outcome(NULL);
    }
    net->workspace = device_alloc(memory, "workspace", net->workspace_bytes);
}

static void take_all(struct layers *net, struct resources *memory)
{
    size_t narrow = (net->part.count + net->part.tied) * type_size(net->type);
    net->narrow = net->type == CUDA_F32 ? (char *)net->weights
                                        : device_alloc(memory, "weights", narrow);
    take_buffers(net, memory);
    take_activations(net, memory);
    take_slots(net, memory);
    size_t room = layers_places(net) > CUDA_ROOM ? layers_places(net) : CUDA_ROOM;
    net->room = device_alloc(memory, "workspace", room * sizeof(float));
    if (net->tokens)
        seq_make(net, memory);
    take_workspace(net, memory);
}

struct layers *layers_create(struct model *model, struct layers_settings settings,
                             float *weights, struct resources *memory,
                             cudaStream_t stream)
{
    static const enum cuda_type types[] = {[PRECISION_FP32] = CUDA_F32,
                                           [PRECISION_BF16] = CUDA_BF16,
                                           [PRECISION_TF32] = CUDA_F32,
                                           [PRECISION_FP16] = CUDA_F16};
    struct layers *net = xcalloc(1, sizeof *net);
    net->settings = settings;
    net->type = types[settings.precision];
    net->host = model;
    net->layers = xcalloc((size_t)model->nlayers + LOGITS, sizeof *net->layers);
    net->tokens = model->type->task == TASK_TOKENS;
    net->from = settings.from;
    net->to = settings.to ? settings.to : model->nlayers;
    net->logits = net->tokens && net->to == model->nlayers;
    net->part = layers_part(model, net->from, net->to);
    net->stream = stream;
    net->weights = weights;
    cuda_doing("cannot start");
    BLAS(cublasLtCreate(&net->blas));
    DNN(cudnnCreate(&net->dnn));
    DNN(cudnnSetStream(net->dnn, stream));
    shape_all(net, model);
    if (!cuda_failed())
        take_all(net, memory);
    return net;
}

struct layers *layers_create_view(struct layers *of, struct resources *memory)
{
    struct layers *net = xcalloc(1, sizeof *net);
    size_t n = (size_t)of->nlayers + LOGITS;
    *net = *of;
    net->of = of;
    net->layers = xcalloc(n, sizeof *net->layers);
    memcpy(net->layers, of->layers, n * sizeof *net->layers);
    take_activations(net, memory);
    take_slots(net, memory);
    return net;
}

void layers_destroy(struct layers *net)
{
    if (!net)
        return;
    if (!net->of) {
        layers_forget_plans(net);
        if (net->dnn)
            cudnnDestroy(net->dnn);
        if (net->blas)
            cublasLtDestroy(net->blas);
    }
    free(net->layers);
    free(net);
}

/* ---- description ---- */

int layers_borders(const struct layers *net, int cut, bool gradients,
                   struct layers_border out[LAYERS_BORDERS])
{
    int n = 0;
    for (int i = 0; i < cut && n < LAYERS_BORDERS; i++) {
        const struct layer *l = &net->layers[i];
        if (crosses(net, i, cut))
            out[n++] = (struct layers_border){gradients ? gradient_of(net, i) : l->y,
                                              l->outputs * type_size(net->type)};
    }
    return n;
}
