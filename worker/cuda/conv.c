/* worker/cuda/conv.c - see products.h: convolutions by cuDNN's graph API
 *
 * The default is the first of the engines that cuDNN's heuristics suggest which may be
 * taken (dnn_graph.h); autotune.c may find another to be faster. Images and filters have
 * their channels last. cuDNN writes a filter's gradient in the type of its operands, so
 * in bf16 and fp16 it is converted to float afterwards.
 */
#include "worker/cuda/layers_impl.h"

#include <stdio.h>

/* Must a filter's gradient be converted to float? */
static bool widens(const struct layers *net, enum pass pass)
{
    return pass == PASS_WEIGHTS && net->type != CUDA_F32;
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

static struct convolution shape_of(const struct layers *net, const struct layer *l, int n,
                                   enum pass pass)
{
    return (struct convolution){.pass = pass,
                                .type = dnn_type(net->type),
                                .tensor_cores = net->settings.precision != PRECISION_FP32,
                                .n = n,
                                .C = l->given.C,
                                .H = l->given.H,
                                .W = l->given.W,
                                .K = l->wide.C,
                                .OH = l->wide.H,
                                .OW = l->wide.W,
                                .R = l->spec->size,
                                .pad = l->spec->pad,
                                .stride = l->spec->stride ? l->spec->stride : 1,
                                .deterministic = net->settings.deterministic,
                                .adds = pass == PASS_INPUTS && l->adds,
                                .w_alignment = filter_alignment(net, l, pass)};
}

static void conv_key(const struct layers *net, const struct layer *l, int n,
                     enum pass pass, char *text, size_t size)
{
    static const char *const passes[] = {"forward", "filter", "image"};
    struct convolution s = shape_of(net, l, n, pass);
    snprintf(text, size, "%s %d %dx%dx%d %dx%d/%d+%d %s %d%s%s", passes[pass], s.n, s.C,
             s.H, s.W, s.K, s.R, s.stride, s.pad,
             precision_names[net->settings.precision], s.w_alignment,
             s.adds ? " adds" : "", s.deterministic ? " deterministic" : "");
}

/* ---- algorithms ---- */

static void conv_describe(struct layers *net, const struct layer *l, struct layer_plan *p,
                          enum pass pass, const char *key)
{
    struct convolution shape = shape_of(net, l, p->n, pass);
    struct dnn_graph **graph = layers_graph(net, key);
    if (!*graph)
        *graph = conv_graph_make(net->dnn, &shape);
    p->products[pass].graph = *graph;
}

static int conv_build(struct layers *net, const struct layer *l,
                      const struct layer_plan *p, enum pass pass, struct algorithm *out)
{
    int rc = dnn_graph_plan(p->products[pass].graph, net->dnn, out->place,
                            net->workspace_bytes, &out->plan);
    if (rc < 0)
        cuda_fail("'%s': cuDNN has no%s engine for it that needs at most %zu MiB",
                  l->spec->name, net->settings.deterministic ? " deterministic" : "",
                  net->workspace_bytes >> 20);
    return rc;
}

/* ---- running ---- */

static void conv_play(struct layers *net, const struct layer *l,
                      const struct layer_plan *p, enum pass pass)
{
    void *x = pass == PASS_INPUTS ? gradient_of(net, l->in) : input_of(net, l);
    void *w = pass != PASS_WEIGHTS ? weights_at(net, l->weight)
              : widens(net, pass)  ? net->dw
                                   : (void *)grads_of(net, l->weight);
    void *y = pass == PASS_FORWARD ? product_of(net, l) : product_grad_of(net, l);
    DNN(conv_graph_play(p->how[pass].plan, net->dnn, x, w, y, net->workspace));
}

static const struct products conv_products = {conv_key, conv_describe, conv_build,
                                              conv_play};

/* With bias, ReLU and pooling behind the product. */
static void conv(struct layers *net, const struct layer *l, const struct layer_plan *p,
                 bool back)
{
    struct cuda_map map = map_of(net, l->wide, p->n);
    if (!back) {
        conv_play(net, l, p, PASS_FORWARD);
        if (!l->spec->bare)
            cuda_bias_relu(product_of(net, l), weights_of(net, l->bias), map, l->y,
                           l->arg, net->stream);
        return;
    }
    if (!l->spec->bare)
        cuda_bias_relu_back(l->y, net->slots[l->slot], l->arg, kept_scale(net, l), map,
                            net->z, net->room, grads_of(net, l->bias), net->stream);
    conv_play(net, l, p, PASS_WEIGHTS);
    if (widens(net, PASS_WEIGHTS))
        cuda_widen(net->dw, (int64_t)l->weight->count, net->type,
                   grads_of(net, l->weight), net->stream);
    if (has_product(l, PASS_INPUTS))
        conv_play(net, l, p, PASS_INPUTS);
}

const struct layer_op layer_conv = {&conv_products, conv};
