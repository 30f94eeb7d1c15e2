/* worker/cuda/conv.c - see layers_impl.h: convolutions by cuDNN's graph API
 *
 * The default is the first of the engines that cuDNN's heuristics suggest which may be
 * taken (dnn_graph.h); autotune.c may find another to be faster. Images and filters have
 * their channels last. cuDNN writes a filter's gradient in the type of its operands, so
 * in bf16 and fp16 it is converted to float afterwards.
 */
#include "worker/cuda/layers_impl.h"

#include "common/mem.h"

#include <stdio.h>

/* Must a filter's gradient be converted to float? */
static bool widens(const struct layers *net, enum pass pass)
{
    return pass == PASS_WEIGHTS && net->type != CUDA_F32;
}

/* The alignment of the filters, or of their gradient; no engine asks for more than 16. */
static int filter_alignment(const struct layers *net, const struct layer *l,
                            enum pass pass)
{
    size_t each = pass == PASS_WEIGHTS ? sizeof(float) : type_size(net->type);
    size_t at = widens(net, pass) ? 0 : place_of(net, l->weight) * each;
    return (int)aligned_to(at, 16);
}

/* Is the product added to its result, x's gradient? */
static bool adds(const struct layer *l, enum pass pass)
{
    return pass == PASS_INPUTS && l->adds;
}

static void conv_key(const struct layers *net, const struct layer *l, int n,
                     enum pass pass, char *text, size_t size)
{
    static const char *const passes[] = {"forward", "filter", "image"};
    snprintf(text, size, "%s %d %dx%dx%d %dx%d/%d+%d %s %d%s%s", passes[pass], n,
             l->given.C, l->given.H, l->given.W, l->wide.C, l->spec->size,
             l->spec->stride, l->spec->pad, precision_names[net->settings.precision],
             filter_alignment(net, l, pass), adds(l, pass) ? " adds" : "",
             net->settings.deterministic ? " deterministic" : "");
}

/* ---- the graph: y[n,OH,OW,K] of x[n,H,W,C] with w[K,R,R,C], or one of the gradients
 * ----
 *
 * Dimensions are given as N, C, H, W; the strides describe that channels are last. */

static const int64_t uids[] = {'x', 'w', 'y'};

static cudnnBackendDescriptor_t make_tensor(struct dnn_graph *g, const struct layers *net,
                                            int64_t uid, int N, int C, int H, int W,
                                            int alignment)
{
    return dnn_tensor(
        g, &(struct dnn_tensor){.uid = uid,
                                .dims = {N, C, H, W},
                                .strides = {(int64_t)C * H * W, 1, (int64_t)W * C, C},
                                .type = dnn_type(net->type),
                                .alignment = alignment});
}

static cudnnBackendDescriptor_t make_convolution(struct dnn_graph *g,
                                                 const struct layer *l)
{
    cudnnDataType_t sums = CUDNN_DATA_FLOAT;
    cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    const int64_t pads[] = {l->spec->pad, l->spec->pad};
    const int64_t strides[] = {l->spec->stride, l->spec->stride};
    const int64_t dilations[] = {1, 1};
    const int64_t dimensions = 2;
    const struct dnn_attribute all[] = {
        {CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &sums},
        {CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode},
        {CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &dimensions},
        {CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, pads},
        {CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, pads},
        {CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, dilations},
        {CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, strides}};
    return dnn_make(g, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, all, ARRAY_LEN(all));
}

/* The three kinds of operation, and the names of their attributes. */
#define OPERATION(type, name, x, w, y)                           \
    {                                                            \
        CUDNN_BACKEND_OPERATION_CONVOLUTION_##type##_DESCRIPTOR, \
            CUDNN_ATTR_OPERATION_CONVOLUTION_##name##_##x,       \
            CUDNN_ATTR_OPERATION_CONVOLUTION_##name##_##w,       \
            CUDNN_ATTR_OPERATION_CONVOLUTION_##name##_##y,       \
            CUDNN_ATTR_OPERATION_CONVOLUTION_##name##_CONV_DESC, \
            CUDNN_ATTR_OPERATION_CONVOLUTION_##name##_ALPHA,     \
            CUDNN_ATTR_OPERATION_CONVOLUTION_##name##_BETA       \
    }
static const struct operation {
    cudnnBackendDescriptorType_t type;
    cudnnBackendAttributeName_t x, w, y, convolution, alpha, beta;
} operations[PASSES] = {
    [PASS_FORWARD] = OPERATION(FORWARD, FORWARD, X, W, Y),
    [PASS_WEIGHTS] = OPERATION(BACKWARD_FILTER, BWD_FILTER, X, DW, DY),
    [PASS_INPUTS] = OPERATION(BACKWARD_DATA, BWD_DATA, DX, W, DY),
};

static void conv_describe(struct layers *net, const struct layer *l, struct layer_plan *p,
                          enum pass pass)
{
    struct dnn_graph *g = dnn_graph_make(net->settings.precision != PRECISION_FP32,
                                         net->settings.deterministic);
    const struct operation *is = &operations[pass];
    const struct map_shape x = l->given, y = l->wide;
    int R = l->spec->size, alignment = filter_alignment(net, l, pass);
    float one = 1, beta = adds(l, pass) ? 1 : 0;
    cudnnBackendDescriptor_t tx = make_tensor(g, net, uids[0], p->n, x.C, x.H, x.W, 16);
    cudnnBackendDescriptor_t tw = make_tensor(g, net, uids[1], y.C, x.C, R, R, alignment);
    cudnnBackendDescriptor_t ty = make_tensor(g, net, uids[2], p->n, y.C, y.H, y.W, 16);
    cudnnBackendDescriptor_t c = make_convolution(g, l);
    const struct dnn_attribute all[] = {DNN_PART(is->x, tx),
                                        DNN_PART(is->w, tw),
                                        DNN_PART(is->y, ty),
                                        DNN_PART(is->convolution, c),
                                        {is->alpha, CUDNN_TYPE_FLOAT, 1, &one},
                                        {is->beta, CUDNN_TYPE_FLOAT, 1, &beta}};
    cudnnBackendDescriptor_t o = dnn_make(g, is->type, all, ARRAY_LEN(all));
    dnn_graph_list(g, net->dnn, &o, 1);
    p->products[pass].graph = g;
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

/* Forward writes y, backward the gradient of w or x in its place. */
static void conv_play(struct layers *net, const struct layer *l,
                      const struct layer_plan *p, enum pass pass)
{
    void *w = pass != PASS_WEIGHTS ? weights_at(net, l->weight)
              : widens(net, pass)  ? net->dw
                                   : (void *)grads_of(net, l->weight);
    const void *places[] = {
        pass == PASS_INPUTS ? gradient_of(net, l->in) : input_of(net, l), w,
        pass == PASS_FORWARD ? product_of(net, l) : product_grad_of(net, l)};
    dnn_graph_play(p->how[pass].plan, net->dnn, ARRAY_LEN(uids), uids, places,
                   net->workspace);
}

const struct products conv_products = {conv_key, conv_describe, conv_build, conv_play};

/* With bias, ReLU and pooling behind the product. */
void conv_run(struct layers *net, const struct layer *l, const struct layer_plan *p,
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
