/* worker/cuda/layers.c - see layers.h: the layers put together, and walked through
 *
 * Each layer owns the activation it gives out. Gradients of activations take turns in a
 * few slots, as in worker/nn/model_impl.h: a layer's is taken when the first of those
 * that follow it writes to it, and given back when the layer itself has gone back.
 */
#include "worker/cuda/layers_impl.h"

#include "common/mem.h"
#include "worker/kernels/rng.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static bool is_conv(const struct layer *l)
{
    return l->spec->kind == LAYER_CONV;
}

/* Is it a library's? */
static bool multiplies(const struct layer *l)
{
    return is_conv(l) || l->spec->kind == LAYER_LINEAR;
}

/* ---- a plan ---- */

void layer_plan_free(struct layer_plan *p)
{
    struct product *products[] = {&p->forward, &p->weights, &p->inputs};
    for (size_t i = 0; i < ARRAY_LEN(products); i++) {
        cublasLtMatrixLayout_t layouts[] = {products[i]->a, products[i]->b,
                                            products[i]->d};
        if (products[i]->op)
            cublasLtMatmulDescDestroy(products[i]->op);
        for (size_t k = 0; k < ARRAY_LEN(layouts); k++) {
            if (layouts[k])
                cublasLtMatrixLayoutDestroy(layouts[k]);
        }
    }
    if (p->x)
        cudnnDestroyTensorDescriptor(p->x);
    if (p->z)
        cudnnDestroyTensorDescriptor(p->z);
}

static void plan_free(struct layers_plan *p)
{
    for (int i = 0; i < MODEL_MAX_LAYERS; i++)
        layer_plan_free(&p->layers[i]);
    free(p);
}

static int plan_layer(const struct layers *net, int i, int n, struct layer_plan *p,
                      struct ddp_err *err)
{
    enum layer_kind kind = net->layers[i].spec->kind;
    return kind == LAYER_CONV     ? conv_plan(net, i, n, p, err)
           : kind == LAYER_LINEAR ? linear_plan(net, i, n, p, err)
                                  : 0; /* kernels of our own need none */
}

struct layers_plan *layers_plan(struct layers *net, int n, struct ddp_err *err)
{
    for (int i = 0; i < net->nplans; i++) {
        if (net->plans[i]->n == n)
            return net->plans[i];
    }
    if (net->nplans == MAX_PLANS) /* the oldest but the whole batch's */
        plan_free(net->plans[1]);
    struct layers_plan *p = xcalloc(1, sizeof *p);
    p->n = n;
    for (int i = 0; i < net->nlayers && n > 0; i++) {
        if (plan_layer(net, i, n, &p->layers[i], err) < 0) {
            plan_free(p);
            if (net->nplans == MAX_PLANS)
                net->plans[1] = net->plans[--net->nplans];
            return NULL;
        }
    }
    net->plans[net->nplans == MAX_PLANS ? 1 : net->nplans++] = p;
    return p;
}

/* ---- shapes ---- */

static void shape_layer(struct layers *net, int index, const struct param **params)
{
    struct layer *l = &net->layers[index];
    const struct layer_spec *spec = l->spec;
    struct io_shape in = net->settings.io;
    l->in = index - (spec->from ? spec->from : 1);
    l->shortcut = spec->shortcut ? index - spec->shortcut : -1;
    l->slot = -1;
    if (l->in >= 0) {
        const struct layer *f = &net->layers[l->in];
        int shrink = f->spec->pool ? 2 : 1;
        in = (struct io_shape){.C = f->K, .H = f->OH / shrink, .W = f->OW / shrink};
    }
    l->C = in.C;
    l->H = in.H;
    l->W = in.W;
    l->inputs = (size_t)in.C * (size_t)in.H * (size_t)in.W;
    l->weight = spec->kind == LAYER_MEAN ? NULL : (*params)++;
    l->bias = spec->kind == LAYER_MEAN || spec->bare ? NULL : (*params)++;
    l->K = in.C;
    l->OH = in.H;
    l->OW = in.W;
    if (spec->kind == LAYER_CONV) {
        int stride = spec->stride ? spec->stride : 1;
        l->K = spec->outputs;
        l->OH = (in.H + 2 * spec->pad - spec->size) / stride + 1;
        l->OW = (in.W + 2 * spec->pad - spec->size) / stride + 1;
    } else if (spec->kind == LAYER_LINEAR) {
        l->K = spec->outputs ? spec->outputs : net->settings.io.outputs;
        l->OH = l->OW = 1;
    } else if (spec->kind == LAYER_MEAN) {
        l->OH = l->OW = 1;
    }
    int shrink = spec->pool ? 2 : 1;
    l->wide = (size_t)l->K * (size_t)l->OH * (size_t)l->OW;
    l->outputs = (size_t)l->K * (size_t)(l->OH / shrink) * (size_t)(l->OW / shrink);
}

/* Does a layer after i use what layer `of` gave out? Its gradient is then there already,
 * and i adds to it. */
static bool used_after(const struct layers *net, int i, int of)
{
    for (int k = i + 1; k < net->nlayers; k++) {
        if (net->layers[k].in == of || net->layers[k].shortcut == of)
            return true;
    }
    return false;
}

static int shape_all(struct layers *net, const struct model *model, struct ddp_err *err)
{
    size_t nparams, batch = (size_t)net->settings.max_batch;
    const struct param *params = model_params(model, &nparams);
    for (int i = 0; net->model->layers[i].kind != LAYER_END; i++, net->nlayers++) {
        struct layer *l = &net->layers[i];
        l->spec = &net->model->layers[i];
        shape_layer(net, i, &params);
        size_t most = l->inputs > l->wide ? l->inputs : l->wide;
        if (most * batch >= (size_t)1 << 31)
            return err_set(err,
                           "'%s' of %zu samples is too large for the cuda engine: "
                           "try a smaller --batch-size",
                           l->spec->name, batch);
    }
    for (int i = 0; i < net->nlayers; i++) {
        struct layer *l = &net->layers[i];
        l->adds = is_conv(l) && l->in >= 0 && used_after(net, i, l->in);
    }
    return 0;
}

static int describe_all(struct layers *net, struct ddp_err *err)
{
    for (int i = 0; i < net->nlayers; i++) {
        if (is_conv(&net->layers[i]) && conv_describe(net, i, err) < 0)
            return -1;
    }
    return 0;
}

/* Tensor cores like channels last, if cuDNN has what we need for it. */
static int choose_order(struct layers *net, struct ddp_err *err)
{
    net->last = net->type != CUDA_F32;
    if (describe_all(net, err) < 0)
        return -1;
    for (int i = 0; i < net->nlayers && net->last; i++) {
        struct layer_plan p = {0};
        struct ddp_err ignored;
        if (is_conv(&net->layers[i]) &&
            conv_plan(net, i, net->settings.max_batch, &p, &ignored) < 0)
            net->last = false;
        layer_plan_free(&p);
    }
    for (int i = 0; i < net->nlayers; i++) {
        struct layer *l = &net->layers[i];
        bool plain = is_conv(l) && !l->spec->bare && l->spec[1].kind != LAYER_CONV;
        l->y_last = net->last && !plain; /* linear layers want [C,H,W] */
    }
    return net->type == CUDA_F32 || net->last ? 0 : describe_all(net, err);
}

/* ---- memory ---- */

static int take_slot(bool *taken, size_t *sizes, size_t elements)
{
    int slot = 0;
    while (slot < MAX_SLOTS - 1 && taken[slot])
        slot++;
    taken[slot] = true;
    sizes[slot] = elements > sizes[slot] ? elements : sizes[slot];
    return slot;
}

static int take_slots(struct layers *net, struct device_memory *memory,
                      struct ddp_err *err)
{
    bool taken[MAX_SLOTS] = {false};
    size_t sizes[MAX_SLOTS] = {0};
    size_t each = (size_t)net->settings.max_batch * type_size(net->type);
    for (int i = net->nlayers - 1; i >= 0; i--) {
        struct layer *l = &net->layers[i];
        const int to[] = {i, l->in, l->shortcut};
        for (size_t j = 0; j < ARRAY_LEN(to); j++) {
            struct layer *t = to[j] >= 0 ? &net->layers[to[j]] : NULL;
            if (t && t->slot < 0)
                t->slot = take_slot(taken, sizes, t->outputs);
        }
        taken[l->slot] = false;
    }
    for (int i = 0; i < MAX_SLOTS; i++) {
        if (sizes[i] && device_take(memory, "their gradients", sizes[i] * each,
                                    &net->slots[i], err) < 0)
            return -1;
    }
    return 0;
}

static int take_activations(struct layers *net, struct device_memory *memory,
                            struct ddp_err *err)
{
    const char *what = "activations";
    size_t widest = 0, filter = 0, batch = (size_t)net->settings.max_batch;
    size_t each = batch * type_size(net->type);
    for (int i = 0; i < net->nlayers; i++) {
        struct layer *l = &net->layers[i];
        size_t size = i == net->nlayers - 1 ? batch * sizeof(float) : each;
        if (device_take(memory, what, l->outputs * size, &l->y, err) < 0 ||
            (l->spec->pool &&
             device_take(memory, what, l->outputs * batch, &l->arg, err) < 0) ||
            (l->spec->kind == LAYER_NORM &&
             device_take(memory, what, 4 * (size_t)l->C * sizeof(float), &l->saved, err) <
                 0) ||
            (l->spec->kind == LAYER_NORM && net->settings.share_norms &&
             device_take(memory, what, (2 * (size_t)l->C + 1) * sizeof(double),
                         &l->shared, err) < 0))
            return -1;
        if (is_conv(l) && !l->spec->bare && l->wide > widest)
            widest = l->wide;
        if (is_conv(l) && l->weight->count > filter)
            filter = l->weight->count;
    }
    if (device_take(memory, what, net->layers[0].inputs * each, &net->x, err) < 0 ||
        (widest && device_take(memory, what, widest * each, &net->z, err) < 0))
        return -1;
    return net->type == CUDA_F32
               ? 0
               : device_take(memory, what, filter * type_size(net->type) + 1, &net->dw,
                             err);
}

/* Running means and variances, as they lie in the model's block. */
static int take_buffers(struct layers *net, struct model *model,
                        struct device_memory *memory, struct ddp_err *err)
{
    size_t floats, nbuffers, at = 0;
    const struct param *buffers = model_buffers(model, &nbuffers);
    model_buffer_block(model, &floats);
    if (floats == 0)
        return 0;
    if (device_take(memory, "weights", floats * sizeof(float), &net->buffers, err) < 0)
        return -1;
    for (int i = 0; i < net->nlayers; i++) {
        if (net->layers[i].spec->kind == LAYER_NORM) {
            net->layers[i].running = net->buffers + buffers[at].offset;
            at += 3;
        }
    }
    return 0;
}

static int take_all(struct layers *net, struct model *model, struct device_memory *memory,
                    struct ddp_err *err)
{
    size_t narrow = net->nfloats * type_size(net->type);
    if (net->type == CUDA_F32)
        net->narrow = (char *)net->weights;
    else if (device_take(memory, "weights", narrow, &net->narrow, err) < 0)
        return -1;
    if (take_buffers(net, model, memory, err) < 0 ||
        take_activations(net, memory, err) < 0 || take_slots(net, memory, err) < 0 ||
        device_take(memory, "workspace", CUDA_ROOM * sizeof(float), &net->room, err) < 0)
        return -1;
    return device_take(memory, "workspace", WORKSPACE, &net->workspace, err);
}

struct layers *layers_create(struct model *model, struct layers_settings settings,
                             float *weights, struct device_memory *memory,
                             cudaStream_t stream, struct ddp_err *err)
{
    static const enum cuda_type types[] = {[PRECISION_FP32] = CUDA_F32,
                                           [PRECISION_BF16] = CUDA_BF16,
                                           [PRECISION_TF32] = CUDA_F32,
                                           [PRECISION_FP16] = CUDA_F16};
    struct layers *net = xcalloc(1, sizeof *net);
    net->settings = settings;
    net->type = types[settings.precision];
    net->model = model_type(model);
    net->nfloats = model_param_count(model);
    net->stream = stream;
    net->weights = weights;
    if (check_blas(cublasLtCreate(&net->blas), "cannot start", err) < 0 ||
        check_dnn(cudnnCreate(&net->dnn), "cannot start", err) < 0 ||
        check_dnn(cudnnSetStream(net->dnn, stream), "cannot start", err) < 0 ||
        shape_all(net, model, err) < 0 || choose_order(net, err) < 0 ||
        take_all(net, model, memory, err) < 0) {
        layers_destroy(net);
        return NULL;
    }
    return net;
}

void layers_destroy(struct layers *net)
{
    if (!net)
        return;
    for (int i = 0; i < net->nplans; i++)
        plan_free(net->plans[i]);
    for (int i = 0; i < MODEL_MAX_LAYERS; i++) {
        if (net->filters[i])
            cudnnDestroyFilterDescriptor(net->filters[i]);
        if (net->convs[i])
            cudnnDestroyConvolutionDescriptor(net->convs[i]);
    }
    if (net->dnn)
        cudnnDestroy(net->dnn);
    if (net->blas)
        cublasLtDestroy(net->blas);
    free(net);
}

/* ---- at work ---- */

struct cuda_map layers_input(const struct layers *net, int n)
{
    const struct io_shape *s = &net->settings.io;
    return (struct cuda_map){
        net->type, net->last && is_conv(&net->layers[0]), n, s->C, s->H, s->W};
}

void *layers_input_at(const struct layers *net)
{
    return net->x;
}

const float *layers_output(const struct layers *net)
{
    return net->layers[net->nlayers - 1].y;
}

void *layers_output_grad(const struct layers *net, enum cuda_type *type)
{
    *type = net->type;
    return gradient_of(net, net->nlayers - 1);
}

float *layers_buffers(const struct layers *net)
{
    return net->buffers;
}

/* Filters one by one, since their order changes; what lies between them at once. */
void layers_refresh(struct layers *net)
{
    size_t from = 0;
    if (net->type == CUDA_F32)
        return;
    for (int i = 0; i <= net->nlayers; i++) {
        const struct layer *l = i < net->nlayers ? &net->layers[i] : NULL;
        if (l && !(is_conv(l) && net->last))
            continue;
        size_t to = l ? l->weight->offset : net->nfloats;
        if (to > from)
            cuda_narrow(net->weights + from, 1, (int)(to - from), 1, net->type, false,
                        net->narrow + from * type_size(net->type), net->stream);
        if (!l)
            return;
        cuda_narrow(net->weights + to, l->K, l->C, l->spec->size, net->type, true,
                    weights_at(net, l->weight), net->stream);
        from = to + l->weight->count;
    }
}

static struct cuda_map map_in(const struct layers *net, const struct layer *l, int n)
{
    return (struct cuda_map){net->type, net->last, n, l->C, l->H, l->W};
}

static struct cuda_norm norm_of(const struct layers *net, const struct layer *l, int n)
{
    return (struct cuda_norm){.map = map_in(net, l, n),
                              .relu = l->spec->relu,
                              .eps = 1e-5f, /* PyTorch's */
                              .momentum = 0.1f,
                              .w = net->weights + l->weight->offset,
                              .bias = net->weights + l->bias->offset,
                              .running = l->running,
                              .saved = l->saved,
                              .room = net->room,
                              .shared = net->sum ? l->shared : NULL};
}

void layers_share_norms(struct layers *net, layers_sum_fn sum, void *arg)
{
    net->sum = sum;
    net->sum_arg = arg;
}

int layers_warm_norms(struct layers *net, struct ddp_err *err)
{
    int C = 0;
    for (int i = 0; net->sum && i < net->nlayers; i++) {
        const struct layer *l = &net->layers[i];
        if (l->spec->kind != LAYER_NORM || l->C == C) /* that has just been */
            continue;
        C = l->C;
        if (net->sum(l->shared, 2 * (size_t)C + 1, net->sum_arg, err) < 0 ||
            net->sum(l->shared, 2 * (size_t)C, net->sum_arg, err) < 0)
            return -1;
    }
    return 0;
}

static int norm_forward(struct layers *net, const struct layer *l, int n, bool learn,
                        struct ddp_err *err)
{
    struct cuda_norm norm = norm_of(net, l, n);
    if (learn && norm.shared) {
        cuda_norm_measure(&norm, input_of(net, l), net->stream);
        if (net->sum(norm.shared, 2 * (size_t)l->C + 1, net->sum_arg, err) < 0)
            return -1;
    }
    cuda_norm(&norm, input_of(net, l),
              l->shortcut < 0 ? NULL : net->layers[l->shortcut].y, learn, l->y,
              net->stream);
    return 0;
}

static int norm_back(struct layers *net, const struct layer *l, int n,
                     struct ddp_err *err)
{
    struct cuda_norm norm = norm_of(net, l, n);
    const void *dy = net->slots[l->slot];
    float *dw = net->grads + l->weight->offset, *dbias = net->grads + l->bias->offset;
    if (norm.shared) {
        cuda_norm_back_measure(&norm, input_of(net, l), l->y, dy, dw, dbias, net->stream);
        if (net->sum(norm.shared, 2 * (size_t)l->C, net->sum_arg, err) < 0)
            return -1;
    }
    cuda_norm_back(&norm, input_of(net, l), l->y, dy, dw, dbias, gradient_of(net, l->in),
                   gradient_of(net, l->shortcut), net->stream);
    return 0;
}

void layers_observe(struct layers *net,
                    int (*done)(const char *layer, char phase, void *arg,
                                struct ddp_err *err),
                    void *arg)
{
    net->done = done;
    net->done_arg = arg;
}

void layers_bare(struct layers *net)
{
    net->bare = true;
}

static int tell_done(const struct layers *net, const struct layer *l, char phase,
                     struct ddp_err *err)
{
    return net->done ? net->done(l->spec->name, phase, net->done_arg, err) : 0;
}

static int layer_forward(struct layers *net, int i, const struct layers_plan *p,
                         bool learn, struct ddp_err *err)
{
    const struct layer *l = &net->layers[i];
    if (net->bare && !multiplies(l))
        return 0;
    if (p->n == 0 && !(l->spec->kind == LAYER_NORM && net->sum))
        return 0;
    switch (l->spec->kind) {
    case LAYER_CONV:
        return conv_forward(net, i, p->n, &p->layers[i], err);
    case LAYER_LINEAR:
        return linear_forward(net, i, &p->layers[i], err);
    case LAYER_NORM:
        return norm_forward(net, l, p->n, learn, err);
    case LAYER_MEAN:
        cuda_mean(input_of(net, l), map_in(net, l, p->n), l->y, net->stream);
        return 0;
    case LAYER_END:
        return 0;
    }
    return 0;
}

int layers_forward(struct layers *net, struct layers_plan *p, const struct cuda_step *s,
                   int batch, struct ddp_err *err)
{
    for (int i = 0; i < net->nlayers; i++) {
        const struct layer *l = &net->layers[i];
        if (layer_forward(net, i, p, s != NULL, err) < 0)
            return -1;
        if (s && p->n > 0 && net->settings.dropout && l->spec->dropout > 0 && !net->bare)
            cuda_dropout(l->y, (int64_t)l->outputs * p->n, net->type, l->spec->dropout, s,
                         batch, i, MODEL_MAX_LAYERS, net->stream);
        if (tell_done(net, l, 'f', err) < 0)
            return -1;
    }
    return 0;
}

static int layer_back(struct layers *net, int i, const struct layers_plan *p,
                      struct ddp_err *err)
{
    const struct layer *l = &net->layers[i];
    const void *dy = net->slots[l->slot];
    float drop = net->settings.dropout ? l->spec->dropout : 0;
    float scale = drop > 0 ? rng_keep_scale(drop) : 1;
    if (net->bare && !multiplies(l))
        return 0;
    if (p->n == 0 && !(l->spec->kind == LAYER_NORM && net->sum))
        return 0;
    switch (l->spec->kind) {
    case LAYER_CONV:
        return conv_back(net, i, p->n, &p->layers[i], scale, err);
    case LAYER_LINEAR:
        return linear_back(net, i, p->n, &p->layers[i], scale, err);
    case LAYER_NORM:
        return norm_back(net, l, p->n, err);
    case LAYER_MEAN:
        cuda_mean_back(dy, map_in(net, l, p->n), gradient_of(net, l->in), net->stream);
        return 0;
    case LAYER_END:
        return 0;
    }
    return 0;
}

int layers_backward(struct layers *net, struct layers_plan *p, float *grads,
                    int (*ready)(size_t offset, size_t count, void *arg,
                                 struct ddp_err *err),
                    void *arg, struct ddp_err *err)
{
    net->grads = grads;
    for (int i = net->nlayers - 1; i >= 0; i--) {
        const struct layer *l = &net->layers[i];
        if (layer_back(net, i, p, err) < 0 || tell_done(net, l, 'b', err) < 0)
            return -1;
        if (l->weight &&
            ready(l->weight->offset, l->weight->count + (l->bias ? l->bias->count : 0),
                  arg, err) < 0)
            return -1;
    }
    p->warm = true;
    return 0;
}

static int nobody_waits(size_t offset, size_t count, void *arg, struct ddp_err *err)
{
    return 0;
}

int layers_warm_up(struct layers *net, struct layers_plan *p, float *grads,
                   struct ddp_err *err)
{
    layers_sum_fn sum = net->sum;
    if (p->warm || p->n == 0)
        return 0;
    net->sum = NULL; /* other ranks may have nothing to warm up */
    int rc = layers_forward(net, p, NULL, 0, err) < 0
                 ? -1
                 : layers_backward(net, p, grads, nobody_waits, NULL, err);
    net->sum = sum;
    return rc;
}

/* ---- when something has gone wrong ---- */

/* In the order of computation: input; then of each layer its weights, bias and output. */
const float *layers_find_bad(struct layers *net, int n, struct ddp_err *err)
{
    float *found = net->room;
    if (check_cuda(cudaMemsetAsync(found, 0, LAYERS_PLACES * sizeof *found, net->stream),
                   "looking for a bad number", err) < 0)
        return NULL;
    int64_t inputs = (int64_t)net->layers[0].inputs;
    cuda_find_bad(net->x, n * inputs, net->type, found, net->stream);
    for (int i = 0; i < net->nlayers; i++) {
        const struct layer *l = &net->layers[i];
        const struct param *w[] = {l->weight, l->bias};
        float *of = found + 1 + 3 * i;
        for (size_t j = 0; j < ARRAY_LEN(w); j++)
            if (w[j])
                cuda_find_bad(net->weights + w[j]->offset, (int64_t)w[j]->count, CUDA_F32,
                              &of[j], net->stream);
        cuda_find_bad(l->y, n * (int64_t)l->outputs,
                      i == net->nlayers - 1 ? CUDA_F32 : net->type, &of[2], net->stream);
    }
    return found;
}

int layers_place(const struct layers *net, const float *found, char *text, size_t size)
{
    if (found[0] > 0) {
        snprintf(text, size, "the data");
        return 0;
    }
    for (int i = 0; i < net->nlayers; i++) {
        const struct layer *l = &net->layers[i];
        const float *of = found + 1 + 3 * i;
        if (of[0] > 0 || of[1] > 0) {
            snprintf(text, size, "'%s'", (of[0] > 0 ? l->weight : l->bias)->name);
            return 2 * i + 1;
        }
        if (of[2] > 0) {
            snprintf(text, size, "the output of '%s'", l->spec->name);
            return 2 * i + 2;
        }
    }
    return -1;
}
