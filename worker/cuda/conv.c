/* worker/cuda/conv.c - see products.h: convolutions by cuDNN's graph API
 *
 * The default is the first of the engines that cuDNN's heuristics suggest which is
 * deterministic; autotune.c may find another to be faster. Images and filters have
 * their channels last. cuDNN writes a filter's gradient in the type of its operands, so
 * in bf16 and fp16 it is converted to float afterwards.
 */
#include "worker/cuda/layers_impl.h"

#include "common/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int stride_of(const struct layer *l)
{
    return l->spec->stride ? l->spec->stride : 1;
}

/* Must a filter's gradient be converted to float? */
static bool widens(const struct layers *net, enum pass pass)
{
    return pass == PASS_WEIGHTS && net->type != CUDA_F32;
}

/* The gradient of the images is not needed. */
static bool conv_has(const struct layers *net, int i, enum pass pass)
{
    return pass != PASS_INPUTS || net->layers[i].in >= 0;
}

/* The alignment of the filters, or of their gradient: device blocks are aligned to
 * 256, and no engine asks for more than 16. */
static int filter_alignment(const struct layers *net, const struct layer *l,
                            enum pass pass)
{
    size_t each = pass == PASS_WEIGHTS ? sizeof(float) : type_size(net->type);
    size_t at = widens(net, pass) ? 0 : place_of(net, l->weight) * each;
    size_t lowest = at & -at;
    return at == 0 || lowest > 16 ? 16 : (int)lowest;
}

static struct convolution shape_of(const struct layers *net, int i,
                                   const struct layer_plan *p, enum pass pass)
{
    static const cudnnDataType_t types[] = {[CUDA_F32] = CUDNN_DATA_FLOAT,
                                            [CUDA_BF16] = CUDNN_DATA_BFLOAT16,
                                            [CUDA_F16] = CUDNN_DATA_HALF};
    const struct layer *l = &net->layers[i];
    return (struct convolution){.pass = pass,
                                .type = types[net->type],
                                .tensor_cores = net->settings.precision != PRECISION_FP32,
                                .n = p->n,
                                .C = l->C,
                                .H = l->H,
                                .W = l->W,
                                .K = l->K,
                                .OH = l->OH,
                                .OW = l->OW,
                                .R = l->spec->size,
                                .pad = l->spec->pad,
                                .stride = stride_of(l),
                                .adds = pass == PASS_INPUTS && l->adds,
                                .w_alignment = filter_alignment(net, l, pass)};
}

static void conv_key(const struct layers *net, int i, const struct layer_plan *p,
                     enum pass pass, char *text, size_t size)
{
    static const char *const passes[] = {"forward", "filter", "image"};
    struct convolution s = shape_of(net, i, p, pass);
    snprintf(text, size, "%s %d %dx%dx%d %dx%d/%d+%d %s %d%s", passes[pass], s.n, s.C,
             s.H, s.W, s.K, s.R, s.stride, s.pad,
             precision_names[net->settings.precision], s.w_alignment,
             s.adds ? " adds" : "");
}

/* ---- available algorithms ---- */

/* Equal convolutions share their plans, which the net keeps. */
static bool conv_build(struct layers *net, int i, const struct layer_plan *p,
                       enum pass pass, const char *name, struct algorithm *out)
{
    char key[PRODUCT_KEY];
    struct convolution shape = shape_of(net, i, p, pass);
    conv_key(net, i, p, pass, key, sizeof key);
    for (size_t k = 0; k < net->nbuilt; k++) {
        const struct built *b = &net->built[k];
        if (strcmp(b->key, key) == 0 && strcmp(b->name, name) == 0) {
            out->graph = b->graph;
            return true;
        }
    }
    struct conv_graph *graph =
        conv_graph_build(net->dnn, &shape, name, net->workspace_bytes);
    out->graph = graph;
    if (!graph)
        return false;
    net->built = xrealloc(net->built, net->nbuilt + 1, sizeof *net->built);
    net->built[net->nbuilt++] = (struct built){xstrdup(key), xstrdup(name), graph};
    return true;
}

void conv_forget(struct layers *net)
{
    for (size_t k = 0; k < net->nbuilt; k++) {
        conv_graph_free(net->built[k].graph);
        free(net->built[k].key);
        free(net->built[k].name);
    }
    free(net->built);
}

static int conv_usual(struct layers *net, int i, const struct layer_plan *p,
                      enum pass pass, int *at, struct algorithm *out, struct ddp_err *err)
{
    enum { MOST = 32 };
    char names[MOST][ALGORITHM_NAME];
    struct convolution shape = shape_of(net, i, p, pass);
    int n = conv_graph_list(net->dnn, &shape, names, MOST);
    while (*at < n) {
        if (conv_build(net, i, p, pass, names[(*at)++], out))
            return 0;
    }
    return err_set(err,
                   "'%s': cuDNN has no deterministic engine for it that needs at most "
                   "%zu MiB",
                   net->layers[i].spec->name, net->workspace_bytes >> 20);
}

static int conv_plan(struct layers *net, int i, int n, struct layer_plan *p,
                     struct ddp_err *err)
{
    for (enum pass pass = 0; pass < PASSES; pass++) {
        int at = 0;
        if (conv_has(net, i, pass))
            TRY(conv_usual(net, i, p, pass, &at, &p->how[pass], err));
    }
    return 0;
}

static int conv_list(struct layers *net, int i, const struct layer_plan *p,
                     enum pass pass, char (*names)[ALGORITHM_NAME], int most)
{
    struct convolution shape = shape_of(net, i, p, pass);
    int n = conv_graph_list(net->dnn, &shape, names, most), others = 0;
    for (size_t k = 0; k < net->nbuilt; k++) {
        for (int j = 0; net->built[k].graph == p->how[pass].graph && j < n; j++) {
            if (strcmp(names[j], net->built[k].name) != 0)
                memmove(names[others++], names[j], sizeof *names);
        }
    }
    return others;
}

/* ---- running ---- */

/* The addresses of a pass's image, filters and result, or of their gradients. */
struct places {
    void *x, *w, *y;
};

static struct places places_of(const struct layers *net, const struct layer *l,
                               enum pass pass)
{
    struct places at = {.x = pass == PASS_INPUTS ? gradient_of(net, l->in)
                             : l->in < 0         ? net->x
                                                 : net->layers[l->in].y,
                        .w = weights_at(net, l->weight),
                        .y = net->z};
    if (pass == PASS_WEIGHTS)
        at.w = widens(net, pass) ? net->dw : net->grads + place_of(net, l->weight);
    if (pass == PASS_FORWARD && !l->spec->pool)
        at.y = l->y;
    if (pass != PASS_FORWARD && l->spec->bare)
        at.y = net->slots[l->slot];
    return at;
}

static void conv_operands(const struct layers *net, int i, int n, enum pass pass,
                          struct operands *out)
{
    const struct layer *l = &net->layers[i];
    struct places at = places_of(net, l, pass);
    size_t x = (size_t)n * l->inputs, y = (size_t)n * l->wide;
    enum cuda_type t = net->type;
    *out = (struct operands){.adds = pass == PASS_INPUTS && l->adds};
    if (pass == PASS_FORWARD) {
        out->in[0].at = at.x, out->in[0].n = x, out->in[0].type = t;
        out->out.at = at.y, out->out.n = y;
    } else {
        out->in[0].at = at.y, out->in[0].n = y, out->in[0].type = t;
        out->out.at = pass == PASS_INPUTS ? at.x : net->grads + place_of(net, l->weight);
        out->out.n = pass == PASS_INPUTS ? x : l->weight->count;
    }
    if (pass == PASS_WEIGHTS)
        out->in[1].at = at.x, out->in[1].n = x, out->in[1].type = t;
    out->out.type = pass == PASS_WEIGHTS ? CUDA_F32 : t;
}

static int conv_play(struct layers *net, int i, const struct layer_plan *p,
                     enum pass pass, const struct algorithm *how, struct ddp_err *err)
{
    const struct layer *l = &net->layers[i];
    struct places at = places_of(net, l, pass);
    TRY(check_dnn(conv_graph_play(how->graph, net->dnn, at.x, at.w, at.y, net->workspace),
                  l->spec->name, err));
    if (widens(net, pass) && !net->bare)
        cuda_widen(net->dw, (int64_t)l->weight->count, net->type,
                   net->grads + place_of(net, l->weight), net->stream);
    return 0;
}

static const struct products conv_products = {.plan = conv_plan,
                                              .usual = conv_usual,
                                              .has = conv_has,
                                              .play = conv_play,
                                              .list = conv_list,
                                              .build = conv_build,
                                              .key = conv_key,
                                              .operands = conv_operands};

static struct cuda_map map_of(const struct layers *net, const struct layer *l, int n)
{
    return (struct cuda_map){net->type, n, l->K, l->OH, l->OW};
}

/* With bias, ReLU and pooling behind the product. */
static int conv_forward(struct layers *net, int i, const struct layer_plan *p, bool learn,
                        struct ddp_err *err)
{
    const struct layer *l = &net->layers[i];
    TRY(conv_play(net, i, p, PASS_FORWARD, &p->how[PASS_FORWARD], err));
    if (!l->spec->bare && !net->bare)
        cuda_bias_relu(places_of(net, l, PASS_FORWARD).y,
                       net->weights + place_of(net, l->bias), map_of(net, l, p->n), l->y,
                       l->arg, net->stream);
    return 0;
}

static int conv_back(struct layers *net, int i, const struct layer_plan *p, float scale,
                     struct ddp_err *err)
{
    const struct layer *l = &net->layers[i];
    if (!l->spec->bare && !net->bare)
        cuda_bias_relu_back(l->y, net->slots[l->slot], l->arg, scale,
                            map_of(net, l, p->n), net->z, net->room,
                            net->grads + place_of(net, l->bias), net->stream);
    TRY(conv_play(net, i, p, PASS_WEIGHTS, &p->how[PASS_WEIGHTS], err));
    return conv_has(net, i, PASS_INPUTS)
               ? conv_play(net, i, p, PASS_INPUTS, &p->how[PASS_INPUTS], err)
               : 0;
}

const struct layer_op layer_conv = {&conv_products, conv_forward, conv_back};
