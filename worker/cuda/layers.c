/* worker/cuda/layers.c - see layers.h
 *
 * cuBLASLt is column-major. A row-major y[n,K] is a column-major (K, n), so that
 *     y = x w^T     becomes   Y(K,n) = W(C,K)^T X(C,n)
 *     dw = g^T x    becomes   DW(C,K) = X(C,n) G(K,n)^T
 *     dx = g w      becomes   DX(C,n) = W(C,K) G(K,n)
 * and a bias per feature is one per row, which the first product adds by itself.
 */
#include "worker/cuda/layers.h"

#include "common/mem.h"
#include "worker/kernels/rng.h"

#include <stdint.h>
#include <stdlib.h>

#define WORKSPACE (32u << 20) /* bytes, one for all: layers run one after another */

enum { MAX_PLANS = 8 };

/* D = op(A) op(B), column-major. */
struct product {
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algo;
};

struct layer {
    const struct layer_spec *spec;
    const struct param *weight, *bias;
    int C, H, W;          /* of its input */
    int K, OH, OW;        /* of a convolution before pooling; linear: K features, 1, 1 */
    size_t in, out, wide; /* floats a sample: given, given out, before pooling */
    float *y;             /* [max_batch, out] */
    uint8_t *arg;         /* [max_batch, out], when it pools */
};

struct layer_plan {
    struct product forward, weights, inputs; /* linear */
    /* a convolution */
    cudnnTensorDescriptor_t x, z;
    cudnnConvolutionFwdAlgo_t forward_algo;
    cudnnConvolutionBwdFilterAlgo_t weights_algo;
    cudnnConvolutionBwdDataAlgo_t inputs_algo;
};

struct layers_plan {
    int n;
    struct layer_plan layers[MODEL_MAX_LAYERS];
};

struct layers {
    struct layers_settings settings;
    const struct model_type *type;
    cudaStream_t stream;
    cublasLtHandle_t blas;
    cudnnHandle_t dnn;
    int nlayers;
    struct layer layers[MODEL_MAX_LAYERS];
    cudnnFilterDescriptor_t filters[MODEL_MAX_LAYERS];
    cudnnConvolutionDescriptor_t convs[MODEL_MAX_LAYERS];
    float *weights;
    float *grads;   /* where those of the batch under way go */
    float *x, *z;   /* input; a convolution's product, and its gradient */
    float *back[2]; /* gradients of activations take turns */
    void *workspace;
    struct layers_plan *plans[MAX_PLANS];
    int nplans;
};

static bool is_conv(const struct layer *l)
{
    return l->spec->kind == LAYER_CONV;
}

/* ---- linear layers ---- */

static void product_free(struct product *p)
{
    if (p->op)
        cublasLtMatmulDescDestroy(p->op);
    cublasLtMatrixLayout_t *all[] = {&p->a, &p->b, &p->d};
    for (size_t i = 0; i < ARRAY_LEN(all); i++) {
        if (*all[i])
            cublasLtMatrixLayoutDestroy(*all[i]);
    }
}

/* A stored matrix, and whether it is read transposed. */
struct operand {
    int rows, columns;
    bool transposed;
};

static int product_choose(const struct layers *net, struct product *p,
                          struct ddp_err *err)
{
    cublasLtMatmulPreference_t wish;
    cublasLtMatmulHeuristicResult_t found;
    size_t most = WORKSPACE;
    int n = 0;
    if (check_blas(cublasLtMatmulPreferenceCreate(&wish), "a linear layer", err) < 0)
        return -1;
    cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                         &most, sizeof most);
    cublasStatus_t rc = cublasLtMatmulAlgoGetHeuristic(net->blas, p->op, p->a, p->b, p->d,
                                                       p->d, wish, 1, &found, &n);
    cublasLtMatmulPreferenceDestroy(wish);
    if (check_blas(rc, "a linear layer", err) < 0)
        return -1;
    if (n == 0)
        return err_set(err, "a linear layer: cuBLASLt has no algorithm for it");
    p->algo = found.algo;
    return 0;
}

static int product_make(const struct layers *net, struct product *p, struct operand a,
                        struct operand b, cublasLtEpilogue_t epilogue,
                        struct ddp_err *err)
{
    cublasComputeType_t compute =
        net->settings.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    cublasOperation_t op_a = a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t op_b = b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    uint64_t m = (uint64_t)(a.transposed ? a.columns : a.rows);
    uint64_t n = (uint64_t)(b.transposed ? b.rows : b.columns);
    const char *what = "a linear layer";
    if (check_blas(cublasLtMatmulDescCreate(&p->op, compute, CUDA_R_32F), what, err) <
            0 ||
        check_blas(cublasLtMatrixLayoutCreate(&p->a, CUDA_R_32F, (uint64_t)a.rows,
                                              (uint64_t)a.columns, a.rows),
                   what, err) < 0 ||
        check_blas(cublasLtMatrixLayoutCreate(&p->b, CUDA_R_32F, (uint64_t)b.rows,
                                              (uint64_t)b.columns, b.rows),
                   what, err) < 0 ||
        check_blas(cublasLtMatrixLayoutCreate(&p->d, CUDA_R_32F, m, n, (int64_t)m), what,
                   err) < 0)
        return -1;
    cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_TRANSA, &op_a,
                                   sizeof op_a);
    cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_TRANSB, &op_b,
                                   sizeof op_b);
    cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                   sizeof epilogue);
    return product_choose(net, p, err);
}

static int multiply(const struct layers *net, const struct product *p, const float *a,
                    const float *b, float *d, const char *what, struct ddp_err *err)
{
    float one = 1, zero = 0;
    return check_blas(cublasLtMatmul(net->blas, p->op, &one, a, p->a, b, p->b, &zero, d,
                                     p->d, d, p->d, &p->algo, net->workspace, WORKSPACE,
                                     net->stream),
                      what, err);
}

static int plan_linear(const struct layers *net, int i, int n, struct layer_plan *p,
                       struct ddp_err *err)
{
    const struct layer *l = &net->layers[i];
    int C = (int)l->in, K = l->K;
    const float *bias = net->weights + l->bias->offset;
    if (product_make(net, &p->forward, (struct operand){C, K, true},
                     (struct operand){C, n, false},
                     l->spec->relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS,
                     err) < 0 ||
        product_make(net, &p->weights, (struct operand){C, n, false},
                     (struct operand){K, n, true}, CUBLASLT_EPILOGUE_DEFAULT, err) < 0 ||
        (i > 0 &&
         product_make(net, &p->inputs, (struct operand){C, K, false},
                      (struct operand){K, n, false}, CUBLASLT_EPILOGUE_DEFAULT, err) < 0))
        return err_prefix(err, "'%s'", l->spec->name);
    return check_blas(cublasLtMatmulDescSetAttribute(p->forward.op,
                                                     CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                                     &bias, sizeof bias),
                      l->spec->name, err);
}

static int linear_back(struct layers *net, int i, int n, const struct layer_plan *p,
                       const float *x, float *dy, float scale, float *dx,
                       struct ddp_err *err)
{
    const struct layer *l = &net->layers[i];
    float *dw = net->grads + l->weight->offset, *db = net->grads + l->bias->offset;
    if (l->spec->relu)
        cuda_mask(l->y, dy, scale, (int64_t)l->out * n, net->stream);
    cuda_sum_channels(dy, n, l->K, 1, db, net->stream);
    if (multiply(net, &p->weights, x, dy, dw, l->spec->name, err) < 0)
        return -1;
    return i == 0 ? 0
                  : multiply(net, &p->inputs, net->weights + l->weight->offset, dy, dx,
                             l->spec->name, err);
}

/* ---- convolutions ---- */

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

static int choose_conv(const struct layers *net, int i, struct layer_plan *p,
                       struct ddp_err *err)
{
    enum { MOST = 8 };
    const char *name = net->layers[i].spec->name;
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
    chosen = i == 0; /* nobody wants the gradient of the images */
    if (i > 0 && check_dnn(cudnnGetConvolutionBackwardDataAlgorithm_v7(
                               net->dnn, net->filters[i], p->z, net->convs[i], p->x, MOST,
                               &n, inputs),
                           name, err) < 0)
        return -1;
    CHOOSE(inputs, n, p->inputs_algo);
    if (chosen)
        return 0;
none:
    return err_set(err, "'%s': cuDNN has no deterministic algorithm for it", name);
}

static int plan_conv(const struct layers *net, int i, int n, struct layer_plan *p,
                     struct ddp_err *err)
{
    const struct layer *l = &net->layers[i];
    const char *name = l->spec->name;
    if (check_dnn(cudnnCreateTensorDescriptor(&p->x), name, err) < 0 ||
        check_dnn(cudnnCreateTensorDescriptor(&p->z), name, err) < 0 ||
        check_dnn(cudnnSetTensor4dDescriptor(p->x, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, n,
                                             l->C, l->H, l->W),
                  name, err) < 0 ||
        check_dnn(cudnnSetTensor4dDescriptor(p->z, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, n,
                                             l->K, l->OH, l->OW),
                  name, err) < 0)
        return -1;
    return choose_conv(net, i, p, err);
}

static int conv_forward(struct layers *net, int i, int n, const struct layer_plan *p,
                        const float *x, struct ddp_err *err)
{
    const struct layer *l = &net->layers[i];
    const float *w = net->weights + l->weight->offset;
    const float *bias = net->weights + l->bias->offset;
    float *z = l->spec->pool ? net->z : l->y, one = 1, zero = 0;
    if (check_dnn(cudnnConvolutionForward(net->dnn, &one, p->x, x, net->filters[i], w,
                                          net->convs[i], p->forward_algo, net->workspace,
                                          WORKSPACE, &zero, p->z, z),
                  l->spec->name, err) < 0)
        return -1;
    cuda_bias_relu(z, bias, n, l->K, l->OH, l->OW, l->y, l->arg, net->stream);
    return 0;
}

static int conv_back(struct layers *net, int i, int n, const struct layer_plan *p,
                     const float *x, float *dy, float scale, float *dx,
                     struct ddp_err *err)
{
    const struct layer *l = &net->layers[i];
    float *dw = net->grads + l->weight->offset, *db = net->grads + l->bias->offset;
    float one = 1, zero = 0;
    cuda_bias_relu_back(l->y, dy, l->arg, scale, n, l->K, l->OH, l->OW, net->z,
                        net->stream);
    cuda_sum_channels(net->z, n, l->K, l->OH * l->OW, db, net->stream);
    if (check_dnn(cudnnConvolutionBackwardFilter(net->dnn, &one, p->x, x, p->z, net->z,
                                                 net->convs[i], p->weights_algo,
                                                 net->workspace, WORKSPACE, &zero,
                                                 net->filters[i], dw),
                  l->spec->name, err) < 0)
        return -1;
    if (i == 0)
        return 0;
    return check_dnn(cudnnConvolutionBackwardData(
                         net->dnn, &one, net->filters[i],
                         net->weights + l->weight->offset, p->z, net->z, net->convs[i],
                         p->inputs_algo, net->workspace, WORKSPACE, &zero, p->x, dx),
                     l->spec->name, err);
}

/* ---- a plan ---- */

static void plan_free(struct layers_plan *p)
{
    for (int i = 0; i < MODEL_MAX_LAYERS; i++) {
        struct layer_plan *l = &p->layers[i];
        product_free(&l->forward);
        product_free(&l->weights);
        product_free(&l->inputs);
        if (l->x)
            cudnnDestroyTensorDescriptor(l->x);
        if (l->z)
            cudnnDestroyTensorDescriptor(l->z);
    }
    free(p);
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
    for (int i = 0; i < net->nlayers; i++) {
        if ((is_conv(&net->layers[i]) ? plan_conv : plan_linear)(net, i, n, &p->layers[i],
                                                                 err) < 0) {
            plan_free(p);
            if (net->nplans == MAX_PLANS)
                net->plans[1] = net->plans[--net->nplans];
            return NULL;
        }
    }
    net->plans[net->nplans == MAX_PLANS ? 1 : net->nplans++] = p;
    return p;
}

/* ---- the layers ---- */

static void shape_layer(struct layer *l, int index, const struct param *params,
                        struct io_shape *flow, int outputs)
{
    l->weight = &params[2 * index];
    l->bias = &params[2 * index + 1];
    l->C = flow->C;
    l->H = flow->H;
    l->W = flow->W;
    l->in = (size_t)flow->C * (size_t)flow->H * (size_t)flow->W;
    l->K = l->spec->outputs ? l->spec->outputs : outputs;
    l->OH = l->OW = 1;
    if (is_conv(l)) {
        l->OH = flow->H - l->spec->size + 1;
        l->OW = flow->W - l->spec->size + 1;
    }
    int shrink = is_conv(l) && l->spec->pool ? 2 : 1;
    l->wide = (size_t)l->K * (size_t)l->OH * (size_t)l->OW;
    *flow = (struct io_shape){.C = l->K, .H = l->OH / shrink, .W = l->OW / shrink};
    l->out = (size_t)flow->C * (size_t)flow->H * (size_t)flow->W;
}

static int describe_conv(struct layers *net, int i, struct ddp_err *err)
{
    const struct layer *l = &net->layers[i];
    int R = l->spec->size;
    if (check_dnn(cudnnCreateFilterDescriptor(&net->filters[i]), l->spec->name, err) <
            0 ||
        check_dnn(cudnnSetFilter4dDescriptor(net->filters[i], CUDNN_DATA_FLOAT,
                                             CUDNN_TENSOR_NCHW, l->K, l->C, R, R),
                  l->spec->name, err) < 0 ||
        check_dnn(cudnnCreateConvolutionDescriptor(&net->convs[i]), l->spec->name, err) <
            0 ||
        check_dnn(cudnnSetConvolution2dDescriptor(net->convs[i], 0, 0, 1, 1, 1, 1,
                                                  CUDNN_CROSS_CORRELATION,
                                                  CUDNN_DATA_FLOAT),
                  l->spec->name, err) < 0)
        return -1;
    return check_dnn(cudnnSetConvolutionMathType(net->convs[i], net->settings.tf32
                                                                    ? CUDNN_DEFAULT_MATH
                                                                    : CUDNN_FMA_MATH),
                     l->spec->name, err);
}

/* What this file has no kernels for. */
static int check_layer(const struct model_type *type, const struct layer_spec *spec,
                       struct ddp_err *err)
{
    bool known = spec->kind == LAYER_CONV || spec->kind == LAYER_LINEAR;
    if (known && !spec->bare && spec->stride <= 1 && spec->pad == 0 && spec->from == 0 &&
        spec->shortcut == 0)
        return 0;
    return err_set(
        err,
        "the cuda engine has no kernel for layer '%s' of %s (it knows unpadded "
        "convolutions and linear layers): take --engine cpu",
        spec->name ? spec->name : "mean", type->name);
}

static int make_layers(struct layers *net, const struct model *model,
                       struct device_memory *memory, struct ddp_err *err)
{
    size_t nparams, widest = 0, widest_conv = 0, batch = (size_t)net->settings.max_batch;
    const struct param *params = model_params(model, &nparams);
    struct io_shape flow = net->settings.io;
    size_t image = (size_t)flow.C * (size_t)flow.H * (size_t)flow.W;
    for (int i = 0; net->type->layers[i].kind != LAYER_END; i++, net->nlayers++) {
        struct layer *l = &net->layers[i];
        l->spec = &net->type->layers[i];
        if (check_layer(net->type, l->spec, err) < 0)
            return -1;
        shape_layer(l, i, params, &flow, net->settings.io.outputs);
        if (device_take(memory, "activations", l->out * batch * sizeof(float), &l->y,
                        err) < 0)
            return -1;
        widest = l->out > widest ? l->out : widest;
        if (!is_conv(l))
            continue;
        widest_conv = l->wide > widest_conv ? l->wide : widest_conv;
        if (describe_conv(net, i, err) < 0 ||
            (l->spec->pool &&
             device_take(memory, "activations", l->out * batch, &l->arg, err) < 0))
            return -1;
    }
    if (device_take(memory, "activations", image * batch * sizeof(float), &net->x, err) <
            0 ||
        device_take(memory, "activations", widest_conv * batch * sizeof(float), &net->z,
                    err) < 0 ||
        device_take(memory, "their gradients", widest * batch * sizeof(float),
                    &net->back[0], err) < 0 ||
        device_take(memory, "their gradients", widest * batch * sizeof(float),
                    &net->back[1], err) < 0)
        return -1;
    return device_take(memory, "workspace", WORKSPACE, &net->workspace, err);
}

struct layers *layers_create(const struct model *model, struct layers_settings settings,
                             float *weights, struct device_memory *memory,
                             cudaStream_t stream, struct ddp_err *err)
{
    struct layers *net = xcalloc(1, sizeof *net);
    net->settings = settings;
    net->type = model_type(model);
    net->stream = stream;
    net->weights = weights;
    if (check_blas(cublasLtCreate(&net->blas), "cannot start", err) < 0 ||
        check_dnn(cudnnCreate(&net->dnn), "cannot start", err) < 0 ||
        check_dnn(cudnnSetStream(net->dnn, stream), "cannot start", err) < 0 ||
        make_layers(net, model, memory, err) < 0) {
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

float *layers_input(struct layers *net)
{
    return net->x;
}

const float *layers_output(const struct layers *net)
{
    return net->layers[net->nlayers - 1].y;
}

float *layers_output_grad(struct layers *net)
{
    return net->back[0];
}

int layers_forward(struct layers *net, struct layers_plan *p, const struct cuda_step *s,
                   int batch, struct ddp_err *err)
{
    const float *x = net->x;
    for (int i = 0; i < net->nlayers; i++) {
        struct layer *l = &net->layers[i];
        const struct layer_plan *lp = &p->layers[i];
        int rc = is_conv(l)
                     ? conv_forward(net, i, p->n, lp, x, err)
                     : multiply(net, &lp->forward, net->weights + l->weight->offset, x,
                                l->y, l->spec->name, err);
        if (rc < 0)
            return -1;
        if (s && net->settings.dropout && l->spec->dropout > 0)
            cuda_dropout(l->y, (int64_t)l->out * p->n, l->spec->dropout, s, batch, i,
                         MODEL_MAX_LAYERS, net->stream);
        x = l->y;
    }
    return 0;
}

int layers_backward(struct layers *net, struct layers_plan *p, float *grads,
                    int (*ready)(size_t offset, size_t count, void *arg,
                                 struct ddp_err *err),
                    void *arg, struct ddp_err *err)
{
    float *dy = net->back[0], *dx = net->back[1];
    net->grads = grads;
    for (int i = net->nlayers - 1; i >= 0; i--) {
        const struct layer *l = &net->layers[i];
        const float *x = i > 0 ? net->layers[i - 1].y : net->x;
        float drop = net->settings.dropout ? l->spec->dropout : 0;
        float scale = drop > 0 ? rng_keep_scale(drop) : 1;
        if ((is_conv(l) ? conv_back : linear_back)(net, i, p->n, &p->layers[i], x, dy,
                                                   scale, dx, err) < 0 ||
            ready(l->weight->offset, l->weight->count + l->bias->count, arg, err) < 0)
            return -1;
        float *swap = dy;
        dy = dx;
        dx = swap;
    }
    return 0;
}
