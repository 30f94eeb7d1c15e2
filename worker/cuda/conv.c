/* worker/cuda/conv.c - see layers_impl.h: convolutions by cuDNN
 *
 * Filters lie as images do: [K,C,R,R], or [K,R,R,C] with channels last. cuDNN gives a
 * filter's gradient in the type that it multiplies in, so that in bf16 and fp16 it is
 * widened behind it.
 */
#include "worker/cuda/layers_impl.h"

static const cudnnDataType_t types[] = {[CUDA_F32] = CUDNN_DATA_FLOAT,
                                        [CUDA_BF16] = CUDNN_DATA_BFLOAT16,
                                        [CUDA_F16] = CUDNN_DATA_HALF};

static cudnnTensorFormat_t format(const struct layers *net)
{
    return net->last ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW;
}

int conv_describe(struct layers *net, int i, struct ddp_err *err)
{
    const struct layer *l = &net->layers[i];
    const char *name = l->spec->name;
    int R = l->spec->size, pad = l->spec->pad;
    int stride = l->spec->stride ? l->spec->stride : 1;
    cudnnMathType_t math = net->type != CUDA_F32 ? CUDNN_TENSOR_OP_MATH
                           : net->settings.precision == PRECISION_TF32
                               ? CUDNN_DEFAULT_MATH
                               : CUDNN_FMA_MATH;
    if (!net->filters[i] &&
        check_dnn(cudnnCreateFilterDescriptor(&net->filters[i]), name, err) < 0)
        return -1;
    if (!net->convs[i] &&
        check_dnn(cudnnCreateConvolutionDescriptor(&net->convs[i]), name, err) < 0)
        return -1;
    if (check_dnn(cudnnSetFilter4dDescriptor(net->filters[i], types[net->type],
                                             format(net), l->K, l->C, R, R),
                  name, err) < 0 ||
        check_dnn(cudnnSetConvolution2dDescriptor(net->convs[i], pad, pad, stride, stride,
                                                  1, 1, CUDNN_CROSS_CORRELATION,
                                                  CUDNN_DATA_FLOAT),
                  name, err) < 0)
        return -1;
    return check_dnn(cudnnSetConvolutionMathType(net->convs[i], math), name, err);
}

/* The first that is deterministic and has room in the workspace; they come fastest first.
 */
#define CHOOSE(found, count, into)                            \
    for (int k_ = 0; k_ < (count) && !chosen; k_++) {         \
        if ((found)[k_].status == CUDNN_STATUS_SUCCESS &&     \
            (found)[k_].determinism == CUDNN_DETERMINISTIC && \
            (found)[k_].memory <= WORKSPACE) {                \
            (into) = (found)[k_].algo;                        \
            chosen = true;                                    \
        }                                                     \
    }

static int choose(const struct layers *net, int i, struct layer_plan *p,
                  struct ddp_err *err)
{
    enum { MOST = 8 };
    const struct layer *l = &net->layers[i];
    const char *name = l->spec->name;
    cudnnConvolutionFwdAlgoPerf_t forward[MOST];
    cudnnConvolutionBwdFilterAlgoPerf_t weights[MOST];
    cudnnConvolutionBwdDataAlgoPerf_t inputs[MOST];
    int n = 0;
    bool chosen = false;
    if (check_dnn(cudnnGetConvolutionForwardAlgorithm_v7(net->dnn, p->x, net->filters[i],
                                                         net->convs[i], p->z, MOST, &n,
                                                         forward),
                  name, err) < 0)
        return -1;
    CHOOSE(forward, n, p->forward_algo);
    if (!chosen)
        goto none;
    chosen = false;
    if (check_dnn(
            cudnnGetConvolutionBackwardFilterAlgorithm_v7(
                net->dnn, p->x, p->z, net->convs[i], net->filters[i], MOST, &n, weights),
            name, err) < 0)
        return -1;
    CHOOSE(weights, n, p->weights_algo);
    if (!chosen)
        goto none;
    chosen = l->in < 0; /* nobody wants the gradient of the images */
    if (l->in >= 0 && check_dnn(cudnnGetConvolutionBackwardDataAlgorithm_v7(
                                    net->dnn, net->filters[i], p->z, net->convs[i], p->x,
                                    MOST, &n, inputs),
                                name, err) < 0)
        return -1;
    CHOOSE(inputs, n, p->inputs_algo);
    if (chosen)
        return 0;
none:
    return err_set(err, "'%s': cuDNN has no deterministic algorithm for it", name);
}

int conv_plan(const struct layers *net, int i, int n, struct layer_plan *p,
              struct ddp_err *err)
{
    const struct layer *l = &net->layers[i];
    const char *name = l->spec->name;
    cudnnDataType_t type = types[net->type];
    if (check_dnn(cudnnCreateTensorDescriptor(&p->x), name, err) < 0 ||
        check_dnn(cudnnCreateTensorDescriptor(&p->z), name, err) < 0 ||
        check_dnn(
            cudnnSetTensor4dDescriptor(p->x, format(net), type, n, l->C, l->H, l->W),
            name, err) < 0 ||
        check_dnn(
            cudnnSetTensor4dDescriptor(p->z, format(net), type, n, l->K, l->OH, l->OW),
            name, err) < 0)
        return -1;
    return choose(net, i, p, err);
}

static struct cuda_map map_of(const struct layers *net, const struct layer *l, int n)
{
    return (struct cuda_map){net->type, net->last, n, l->K, l->OH, l->OW};
}

int conv_forward(struct layers *net, int i, int n, const struct layer_plan *p,
                 struct ddp_err *err)
{
    const struct layer *l = &net->layers[i];
    bool in_place = l->spec->bare || (!l->spec->pool && l->y_last == net->last);
    void *z = in_place ? l->y : net->z;
    float one = 1, zero = 0;
    if (check_dnn(cudnnConvolutionForward(net->dnn, &one, p->x, input_of(net, l),
                                          net->filters[i], weights_at(net, l->weight),
                                          net->convs[i], p->forward_algo, net->workspace,
                                          WORKSPACE, &zero, p->z, z),
                  l->spec->name, err) < 0)
        return -1;
    if (!l->spec->bare && !net->bare)
        cuda_bias_relu(z, net->weights + place_of(net, l->bias), map_of(net, l, n),
                       l->y_last, l->y, l->arg, net->stream);
    return 0;
}

static int filter_back(struct layers *net, int i, const struct layer_plan *p,
                       const void *dz, struct ddp_err *err)
{
    const struct layer *l = &net->layers[i];
    float *dw = net->grads + place_of(net, l->weight), one = 1, zero = 0;
    void *to = net->type == CUDA_F32 ? (void *)dw : net->dw;
    if (check_dnn(cudnnConvolutionBackwardFilter(net->dnn, &one, p->x, input_of(net, l),
                                                 p->z, dz, net->convs[i], p->weights_algo,
                                                 net->workspace, WORKSPACE, &zero,
                                                 net->filters[i], to),
                  l->spec->name, err) < 0)
        return -1;
    if (to != dw && !net->bare)
        cuda_widen(to, l->K, l->C, l->spec->size, net->type, net->last, dw, net->stream);
    return 0;
}

int conv_back(struct layers *net, int i, int n, const struct layer_plan *p, float scale,
              struct ddp_err *err)
{
    const struct layer *l = &net->layers[i];
    const void *dz = net->slots[l->slot];
    float one = 1, beta = l->adds ? 1 : 0;
    if (!l->spec->bare && !net->bare)
        cuda_bias_relu_back(l->y, dz, l->arg, scale, map_of(net, l, n), l->y_last, net->z,
                            net->room, net->grads + place_of(net, l->bias), net->stream);
    if (!l->spec->bare)
        dz = net->z;
    if (filter_back(net, i, p, dz, err) < 0)
        return -1;
    if (l->in < 0)
        return 0;
    return check_dnn(cudnnConvolutionBackwardData(
                         net->dnn, &one, net->filters[i], weights_at(net, l->weight),
                         p->z, dz, net->convs[i], p->inputs_algo, net->workspace,
                         WORKSPACE, &beta, p->x, gradient_of(net, l->in)),
                     l->spec->name, err);
}
