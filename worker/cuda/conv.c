/* worker/cuda/conv.c - see products.h: convolutions by cuDNN
 *
 * The default is the first deterministic algorithm that cuDNN's older interface
 * recommends. autotune.c may find another of these, or an engine of the graph API, to
 * be faster.
 *
 * Filters have the images' layout: [K,C,R,R], or [K,R,R,C] with channels last. cuDNN
 * writes a filter's gradient in the type of its operands, so in bf16 and fp16 it is
 * converted to float afterwards, unless an engine that writes float is chosen.
 */
#include "worker/cuda/layers_impl.h"

#include "common/mem.h"

#include <stdio.h>
#include <stdlib.h>

static const cudnnDataType_t types[] = {[CUDA_F32] = CUDNN_DATA_FLOAT,
                                        [CUDA_BF16] = CUDNN_DATA_BFLOAT16,
                                        [CUDA_F16] = CUDNN_DATA_HALF};

static cudnnTensorFormat_t format(const struct layers *net)
{
    return net->last ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW;
}

static int stride_of(const struct layer *l)
{
    return l->spec->stride ? l->spec->stride : 1;
}

/* The math type that the precision allows. */
static cudnnMathType_t math_of(const struct layers *net)
{
    return net->type != CUDA_F32                       ? CUDNN_TENSOR_OP_MATH
           : net->settings.precision == PRECISION_TF32 ? CUDNN_DEFAULT_MATH
                                                       : CUDNN_FMA_MATH;
}

int conv_describe(struct layers *net, int i, struct ddp_err *err)
{
    const struct layer *l = &net->layers[i];
    const char *name = l->spec->name;
    int R = l->spec->size, pad = l->spec->pad;
    int stride = stride_of(l);
    if (!net->filters[i])
        TRY(check_dnn(cudnnCreateFilterDescriptor(&net->filters[i]), name, err));
    if (!net->convs[i])
        TRY(check_dnn(cudnnCreateConvolutionDescriptor(&net->convs[i]), name, err));
    TRY(check_dnn(cudnnSetFilter4dDescriptor(net->filters[i], types[net->type],
                                             format(net), l->K, l->C, R, R),
                  name, err));
    return check_dnn(
        cudnnSetConvolution2dDescriptor(net->convs[i], pad, pad, stride, stride, 1, 1,
                                        CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT),
        name, err);
}

/* ---- available algorithms ---- */

/* Of the algorithms found, those that are deterministic and fit in the workspace;
 * fastest first. In fp32 without those that use TF32. */
#define USABLE(found, count, into)                                               \
    for (int k_ = 0, n_ = (count); k_ < n_; k_++) {                              \
        if ((found)[k_].status == CUDNN_STATUS_SUCCESS &&                        \
            (found)[k_].determinism == CUDNN_DETERMINISTIC &&                    \
            (found)[k_].memory <= net->workspace_bytes &&                        \
            (math != CUDNN_FMA_MATH || (found)[k_].mathType == math))            \
            (into)[usable++] = (struct algorithm){.kind = ALGORITHM_NUMBER,      \
                                                  .number = (found)[k_].algo,    \
                                                  .math = (found)[k_].mathType}; \
    }

/* Algorithm 1 of each pass is deterministic and supports all shapes; PyTorch uses it,
 * too, in deterministic mode. Does it fit in the workspace? */
static bool has_first(const struct layers *net, int i, const struct layer_plan *p,
                      enum pass pass)
{
    size_t bytes = 0;
    cudnnFilterDescriptor_t w = net->filters[i];
    cudnnConvolutionDescriptor_t c = net->convs[i];
    cudnnStatus_t rc =
        pass == PASS_FORWARD
            ? cudnnGetConvolutionForwardWorkspaceSize(
                  net->dnn, p->x, w, c, p->z,
                  CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, &bytes)
        : pass == PASS_WEIGHTS
            ? cudnnGetConvolutionBackwardFilterWorkspaceSize(
                  net->dnn, p->x, p->z, c, w, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, &bytes)
            : cudnnGetConvolutionBackwardDataWorkspaceSize(
                  net->dnn, w, p->z, c, p->x, CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, &bytes);
    return rc == CUDNN_STATUS_SUCCESS && bytes <= net->workspace_bytes;
}

/* The older interface's algorithms: how many, or -1. */
static int find(const struct layers *net, int i, const struct layer_plan *p,
                enum pass pass, struct algorithm out[MOST_USUAL], struct ddp_err *err)
{
    const char *name = net->layers[i].spec->name;
    cudnnFilterDescriptor_t w = net->filters[i];
    cudnnConvolutionDescriptor_t c = net->convs[i];
    cudnnMathType_t math = math_of(net);
    cudnnConvolutionFwdAlgoPerf_t forward[MOST_USUAL];
    cudnnConvolutionBwdFilterAlgoPerf_t weights[MOST_USUAL];
    cudnnConvolutionBwdDataAlgoPerf_t inputs[MOST_USUAL];
    int n = 0, usable = 0;
    cudnnStatus_t rc = cudnnSetConvolutionMathType(c, math);
    if (rc == CUDNN_STATUS_SUCCESS)
        rc = pass == PASS_FORWARD
                 ? cudnnGetConvolutionForwardAlgorithm_v7(net->dnn, p->x, w, c, p->z,
                                                          MOST_USUAL, &n, forward)
             : pass == PASS_WEIGHTS
                 ? cudnnGetConvolutionBackwardFilterAlgorithm_v7(
                       net->dnn, p->x, p->z, c, w, MOST_USUAL, &n, weights)
                 : cudnnGetConvolutionBackwardDataAlgorithm_v7(net->dnn, w, p->z, c, p->x,
                                                               MOST_USUAL, &n, inputs);
    TRY(check_dnn(rc, name, err));
    if (pass == PASS_FORWARD)
        USABLE(forward, n, out)
    else if (pass == PASS_WEIGHTS)
        USABLE(weights, n, out)
    else
        USABLE(inputs, n, out)
    if (usable == 0 && has_first(net, i, p, pass))
        out[usable++] =
            (struct algorithm){.kind = ALGORITHM_NUMBER, .number = 1, .math = math};
    return usable;
}

static int conv_usual(const struct layers *net, int i, const struct layer_plan *p,
                      enum pass pass, struct algorithm out[MOST_USUAL],
                      struct ddp_err *err)
{
    int found = find(net, i, p, pass, out, err);
    return found == 0 ? err_set(err, "'%s': cuDNN has no deterministic algorithm for it",
                                net->layers[i].spec->name)
                      : found;
}

/* The gradient of the images is not needed. */
static bool conv_has(const struct layers *net, int i, enum pass pass)
{
    return pass != PASS_INPUTS || net->layers[i].in >= 0;
}

static int conv_plan(const struct layers *net, int i, int n, struct layer_plan *p,
                     struct ddp_err *err)
{
    const struct layer *l = &net->layers[i];
    const char *name = l->spec->name;
    cudnnDataType_t type = types[net->type];
    TRY(check_dnn(cudnnCreateTensorDescriptor(&p->x), name, err));
    TRY(check_dnn(cudnnCreateTensorDescriptor(&p->z), name, err));
    TRY(check_dnn(
        cudnnSetTensor4dDescriptor(p->x, format(net), type, n, l->C, l->H, l->W), name,
        err));
    TRY(check_dnn(
        cudnnSetTensor4dDescriptor(p->z, format(net), type, n, l->K, l->OH, l->OW), name,
        err));
    for (int pass = 0; pass < PASSES; pass++) {
        struct algorithm found[MOST_USUAL];
        if (!conv_has(net, i, pass))
            continue;
        TRY(conv_usual(net, i, p, pass, found, err));
        p->how[pass] = found[0];
    }
    return 0;
}

/* The alignment of the filters, or of their gradient: device blocks are aligned to
 * 256, and no engine asks for more than 16. */
static int filter_alignment(const struct layers *net, const struct layer *l,
                            enum pass pass, bool as_float)
{
    bool grads = pass == PASS_WEIGHTS;
    bool own = grads && net->type != CUDA_F32 && !as_float; /* net->dw */
    size_t each = grads ? sizeof(float) : type_size(net->type);
    size_t at = own ? 0 : place_of(net, l->weight) * each;
    size_t lowest = at & -at;
    return at == 0 || lowest > 16 ? 16 : (int)lowest;
}

static struct convolution shape_of(const struct layers *net, int i,
                                   const struct layer_plan *p, enum pass pass,
                                   bool as_float)
{
    const struct layer *l = &net->layers[i];
    return (struct convolution){.pass = pass,
                                .type = types[net->type],
                                .last = net->last,
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
                                .as_float = as_float,
                                .w_alignment = filter_alignment(net, l, pass, as_float)};
}

/* Must a filter's gradient be converted to float, unless an engine writes float? */
static bool widens(const struct layers *net, enum pass pass)
{
    return pass == PASS_WEIGHTS && net->type != CUDA_F32;
}

/* All candidates; of the engines that write float a few, named 'w' in place of 'g'. */
static int conv_list(const struct layers *net, int i, const struct layer_plan *p,
                     enum pass pass, char (*names)[ALGORITHM_NAME], int most)
{
    enum { AS_FLOAT = 4 };
    struct ddp_err ignored;
    struct convolution shape = shape_of(net, i, p, pass, false);
    struct convolution as_float = shape_of(net, i, p, pass, true);
    struct algorithm all[MOST_USUAL];
    int n = 0, room = widens(net, pass) ? AS_FLOAT : 0;
    int found = find(net, i, p, pass, all, &ignored);
    /* the list may repeat an algorithm with another math type; one is the default */
    for (int k = 0; k < found && n < most - room; k++) {
        bool known = all[k].number == p->how[pass].number;
        for (int j = 0; j < k; j++)
            known = known || all[j].number == all[k].number;
        if (!known)
            snprintf(names[n++], ALGORITHM_NAME, "a%d", all[k].number);
    }
    n += conv_graph_list(net->dnn, &shape, names + n, most - room - n);
    int others = n;
    if (room > 0)
        n += conv_graph_list(net->dnn, &as_float, names + n, room);
    for (int k = others; k < n; k++)
        names[k][0] = 'w';
    return n;
}

static bool conv_build(const struct layers *net, int i, const struct layer_plan *p,
                       enum pass pass, const char *name, struct algorithm *out)
{
    struct ddp_err ignored;
    char graph[ALGORITHM_NAME];
    bool as_float = *name == 'w';
    struct convolution shape = shape_of(net, i, p, pass, as_float);
    struct algorithm all[MOST_USUAL];
    int found = 0;
    *out = (struct algorithm){.kind = ALGORITHM_GRAPH, .as_float = as_float};
    snprintf(graph, sizeof graph, "g%s", name + 1);
    if (*name == 'g' || (as_float && widens(net, pass)))
        out->graph = conv_graph_build(net->dnn, &shape, graph, net->workspace_bytes);
    if (*name != 'a')
        return out->graph != NULL;
    found = find(net, i, p, pass, all, &ignored);
    for (int k = 0; k < found; k++) {
        *out = all[k];
        if (out->number == atoi(name + 1))
            return true;
    }
    return false;
}

static void conv_key(const struct layers *net, int i, const struct layer_plan *p,
                     enum pass pass, char *text, size_t size)
{
    static const char *const passes[] = {"forward", "filter", "image"};
    struct convolution s = shape_of(net, i, p, pass, false);
    snprintf(text, size, "%s %d %dx%dx%d %dx%d/%d+%d %s %s %d%s", passes[pass], s.n, s.C,
             s.H, s.W, s.K, s.R, s.stride, s.pad,
             precision_names[net->settings.precision], s.last ? "last" : "first",
             s.w_alignment, s.adds ? " adds" : "");
}

/* ---- running ---- */

/* The addresses of a pass's image, filters and result, or of their gradients. */
struct places {
    void *x, *w, *y;
};

static struct places places_of(const struct layers *net, const struct layer *l,
                               enum pass pass, bool as_float)
{
    bool in_place = l->spec->bare || (!l->spec->pool && l->y_last == net->last);
    struct places at = {.x = pass == PASS_INPUTS ? gradient_of(net, l->in)
                             : l->in < 0         ? net->x
                                                 : net->layers[l->in].y,
                        .w = weights_at(net, l->weight),
                        .y = net->z};
    if (pass == PASS_WEIGHTS)
        at.w = widens(net, pass) && !as_float ? net->dw
                                              : net->grads + place_of(net, l->weight);
    if (pass == PASS_FORWARD && in_place)
        at.y = l->y;
    if (pass != PASS_FORWARD && l->spec->bare)
        at.y = net->slots[l->slot];
    return at;
}

static void conv_operands(const struct layers *net, int i, int n, enum pass pass,
                          struct operands *out)
{
    const struct layer *l = &net->layers[i];
    struct places at = places_of(net, l, pass, true);
    size_t x = (size_t)n * l->inputs, y = (size_t)n * l->wide;
    enum cuda_type t = net->type;
    *out = (struct operands){.adds = pass == PASS_INPUTS && l->adds};
    if (pass == PASS_FORWARD) {
        out->in[0].at = at.x, out->in[0].n = x, out->in[0].type = t;
        out->out.at = at.y, out->out.n = y;
    } else {
        out->in[0].at = at.y, out->in[0].n = y, out->in[0].type = t;
        out->out.at = pass == PASS_WEIGHTS ? at.w : at.x;
        out->out.n = pass == PASS_WEIGHTS ? l->weight->count : x;
    }
    if (pass == PASS_WEIGHTS)
        out->in[1].at = at.x, out->in[1].n = x, out->in[1].type = t;
    out->out.type = pass == PASS_WEIGHTS ? CUDA_F32 : t;
}

/* By cuDNN's older interface. */
static cudnnStatus_t play_number(const struct layers *net, int i,
                                 const struct layer_plan *p, enum pass pass,
                                 const struct algorithm *how)
{
    const struct layer *l = &net->layers[i];
    struct places at = places_of(net, l, pass, false);
    cudnnFilterDescriptor_t w = net->filters[i];
    cudnnConvolutionDescriptor_t c = net->convs[i];
    void *room = net->workspace;
    size_t bytes = net->workspace_bytes;
    int number = how->number;
    float one = 1, zero = 0, beta = l->adds ? 1 : 0;
    cudnnStatus_t rc = cudnnSetConvolutionMathType(c, how->math);
    if (rc != CUDNN_STATUS_SUCCESS)
        return rc;
    if (pass == PASS_FORWARD)
        return cudnnConvolutionForward(net->dnn, &one, p->x, at.x, w, at.w, c,
                                       (cudnnConvolutionFwdAlgo_t)number, room, bytes,
                                       &zero, p->z, at.y);
    if (pass == PASS_WEIGHTS)
        return cudnnConvolutionBackwardFilter(net->dnn, &one, p->x, at.x, p->z, at.y, c,
                                              (cudnnConvolutionBwdFilterAlgo_t)number,
                                              room, bytes, &zero, w, at.w);
    return cudnnConvolutionBackwardData(net->dnn, &one, w, at.w, p->z, at.y, c,
                                        (cudnnConvolutionBwdDataAlgo_t)number, room,
                                        bytes, &beta, p->x, at.x);
}

static int conv_play(struct layers *net, int i, const struct layer_plan *p,
                     enum pass pass, const struct algorithm *how, struct ddp_err *err)
{
    const struct layer *l = &net->layers[i];
    struct places at = places_of(net, l, pass, how->as_float);
    cudnnStatus_t rc =
        how->kind == ALGORITHM_GRAPH
            ? conv_graph_play(how->graph, net->dnn, at.x, at.w, at.y, net->workspace)
            : play_number(net, i, p, pass, how);
    TRY(check_dnn(rc, l->spec->name, err));
    if (widens(net, pass) && !how->as_float && !net->bare)
        cuda_widen(net->dw, l->K, l->C, l->spec->size, net->type, net->last,
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
    return (struct cuda_map){net->type, net->last, n, l->K, l->OH, l->OW};
}

/* With bias, ReLU and pooling behind the product. */
static int conv_forward(struct layers *net, int i, const struct layer_plan *p, bool learn,
                        struct ddp_err *err)
{
    const struct layer *l = &net->layers[i];
    TRY(conv_play(net, i, p, PASS_FORWARD, &p->how[PASS_FORWARD], err));
    if (!l->spec->bare && !net->bare)
        cuda_bias_relu(places_of(net, l, PASS_FORWARD, false).y,
                       net->weights + place_of(net, l->bias), map_of(net, l, p->n),
                       l->y_last, l->y, l->arg, net->stream);
    return 0;
}

static int conv_back(struct layers *net, int i, const struct layer_plan *p, float scale,
                     struct ddp_err *err)
{
    const struct layer *l = &net->layers[i];
    if (!l->spec->bare && !net->bare)
        cuda_bias_relu_back(l->y, net->slots[l->slot], l->arg, scale,
                            map_of(net, l, p->n), l->y_last, net->z, net->room,
                            net->grads + place_of(net, l->bias), net->stream);
    TRY(conv_play(net, i, p, PASS_WEIGHTS, &p->how[PASS_WEIGHTS], err));
    return conv_has(net, i, PASS_INPUTS)
               ? conv_play(net, i, p, PASS_INPUTS, &p->how[PASS_INPUTS], err)
               : 0;
}

const struct layer_op layer_conv = {&conv_products, conv_forward, conv_back};
