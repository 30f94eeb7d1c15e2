/* worker/cuda/layers.c - see layers.h: runs the layers; layers_make.c creates them */
#include "worker/cuda/layers_impl.h"

#include "common/mem.h"

#include <stdint.h>

struct layers_ends layers_ends(const struct layers *net)
{
    int last = net->nlayers - 1;
    return (struct layers_ends){net->type,           net->x,
                                net->layers[last].y, gradient_of(net, last),
                                net->buffers,        net->room};
}

void layers_refresh(struct layers *net)
{
    if (net->type != CUDA_F32)
        cuda_narrow(net->weights, (int64_t)(net->part.count + net->part.tied), net->type,
                    net->narrow, net->stream);
}

static void sum_norm(const struct layers *net, const struct layer *l, size_t n)
{
    net->settings.sum(l->shared, n, net->settings.arg);
}

void layers_warm_norms(struct layers *net)
{
    int C = 0;
    for (int i = net->from; net->settings.sum && i < net->to; i++) {
        const struct layer *l = &net->layers[i];
        if (l->spec->kind != LAYER_NORM ||
            l->given.C == C) /* a sum of this size was just run */
            continue;
        C = l->given.C;
        sum_norm(net, l, 2 * (size_t)C + 1);
        sum_norm(net, l, 2 * (size_t)C);
    }
}

void batch_norm_run(struct layers *net, const struct layer *l, const struct layer_plan *p,
                    bool back)
{
    const struct cuda_norm norm = {.map = map_of(net, l->given, p->n),
                                   .relu = l->spec->relu,
                                   .eps = 1e-5f, /* PyTorch's */
                                   .momentum = 0.1f,
                                   .w = weights_of(net, l->weight),
                                   .bias = weights_of(net, l->bias),
                                   .running = l->running,
                                   .saved = l->saved,
                                   .room = net->room,
                                   .shared = net->settings.sum ? l->shared : NULL};
    const void *x = input_of(net, l);
    size_t sums = 2 * (size_t)l->given.C;
    if (back) {
        const void *dy = net->slots[l->slot];
        cuda_norm_back_measure(&norm, x, l->y, dy, grads_of(net, l->weight),
                               grads_of(net, l->bias), net->stream);
        if (norm.shared)
            sum_norm(net, l, sums);
        cuda_norm_back(&norm, x, l->y, dy, gradient_of(net, l->in),
                       gradient_of(net, l->shortcut), net->stream);
        return;
    }
    if (net->step)
        cuda_norm_measure(&norm, x, net->stream);
    if (net->step && norm.shared)
        sum_norm(net, l, sums + 1);
    cuda_norm(&norm, x, l->shortcut < 0 ? NULL : net->layers[l->shortcut].y,
              net->step != NULL, l->y, net->stream);
}

void mean_run(struct layers *net, const struct layer *l, const struct layer_plan *p,
              bool back)
{
    struct cuda_map map = map_of(net, l->given, p->n);
    if (back)
        cuda_mean_back(net->slots[l->slot], map, gradient_of(net, l->in), net->stream);
    else
        cuda_mean(input_of(net, l), map, l->y, net->stream);
}

/* Without samples only norms that are shared take part; never the logits. */
static bool takes_part(const struct layers *net, const struct layer *l, int n)
{
    return layer_ops[l->spec->kind].run &&
           (n > 0 || (l->spec->kind == LAYER_NORM && net->settings.sum));
}

static void drop(const struct layers *net, const struct layer *l, void *y, int n)
{
    struct cuda_map map = map_of(net, l->map, n * (int)l->rows);
    cuda_dropout(y, map, l->spec->dropout, net->step, net->batch, (int)(l - net->layers),
                 model_dropout_streams(net->host), net->stream);
}

/* Of tokens: the gradient of what a layer has added, and that of dropout. */
static void tokens_back(struct layers *net, const struct layer *l, int n)
{
    void *dy = net->slots[l->slot];
    size_t count = l->outputs * (size_t)n, bytes = count * type_size(net->type);
    if (l->shortcut >= 0) {
        void *to = gradient_of(net, l->shortcut);
        if (l->shortcut_adds)
            cuda_add(to, dy, (int64_t)count, net->type, net->stream);
        else
            CUDA(cudaMemcpyAsync(to, dy, bytes, cudaMemcpyDeviceToDevice, net->stream));
    }
    if (drops(net, l))
        drop(net, l, dy, n);
}

void layers_forward(struct layers *net, int n, const struct cuda_step *s, int batch)
{
    const struct layers_plan *p = layers_plan(net, n);
    net->step = s;
    net->batch = batch;
    for (int i = net->from; p && i < net->to; i++) {
        const struct layer *l = &net->layers[i];
        cuda_doing("'%s' forward%s", l->spec->name, net->settings.where);
        if (takes_part(net, l, n))
            layer_ops[l->spec->kind].run(net, l, &p->layers[i], false);
        if (drops(net, l) && n > 0)
            drop(net, l, l->y, n);
        if (drops(net, l) && l->shortcut >= 0) /* else the product has added it */
            cuda_add(l->y, net->layers[l->shortcut].y, (int64_t)l->outputs * n, net->type,
                     net->stream);
        if (net->settings.done)
            net->settings.done(l->spec->name, "forward", net->settings.arg);
    }
}

void layers_backward(struct layers *net, int n, float *grads)
{
    const struct layers_plan *p = layers_plan(net, n);
    const struct layers_settings *s = &net->settings;
    net->grads = grads;
    for (int i = net->to - 1; p && i >= net->from; i--) {
        const struct layer *l = &net->layers[i];
        cuda_doing("'%s' backward%s", l->spec->name, s->where);
        if (net->tokens && n > 0)
            tokens_back(net, l, n);
        if (takes_part(net, l, n))
            layer_ops[l->spec->kind].run(net, l, &p->layers[i], true);
        if (s->done)
            s->done(l->spec->name, "backward", s->arg);
        if (l->weight && s->ready)
            s->ready(l->weight->offset, net->host->layers[i].nfloats, s->arg);
    }
}

void layers_warm_up(struct layers *net, int n, float *grads)
{
    const struct layers_settings settings = net->settings;
    struct layers_plan *p = layers_plan(net, n);
    if (!p || p->warm || n == 0)
        return;
    layers_settle(net, p, grads);
    net->settings.sum = NULL; /* other ranks may have nothing to warm up */
    net->settings.ready = NULL;
    layers_forward(net, n, NULL, 0);
    layers_backward(net, n, grads);
    net->settings = settings;
    p->warm = !cuda_failed();
}

/* ---- finding NaNs ---- */

const float *layers_find_bad(struct layers *net, int n)
{
    float *found = net->room;
    CUDA(cudaMemsetAsync(found, 0, layers_places(net) * sizeof *found, net->stream));
    int64_t inputs = (int64_t)net->layers[0].inputs;
    if (net->x && !net->tokens)
        cuda_find_bad(net->x, n * inputs, net->type, found, net->stream);
    for (int i = net->from; i < net->to; i++) {
        const struct layer *l = &net->layers[i];
        const struct param *w[] = {l->weight, l->bias};
        float *of = found + 1 + 3 * i;
        for (size_t j = 0; j < ARRAY_LEN(w); j++)
            if (w[j])
                cuda_find_bad(net->weights + place_of(net, w[j]), (int64_t)w[j]->count,
                              CUDA_F32, &of[j], net->stream);
        cuda_find_bad(l->y, n * (int64_t)l->outputs, l->type, &of[2], net->stream);
    }
    return found;
}
