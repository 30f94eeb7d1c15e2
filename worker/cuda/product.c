/* worker/cuda/product.c - see layers_impl.h: linear layers by cuBLASLt
 *
 * cuBLASLt is column-major. A row-major y[n,K] is a column-major (K, n), so that
 *     y = x w^T     becomes   Y(K,n) = W(C,K)^T X(C,n)
 *     dw = g^T x    becomes   DW(C,K) = X(C,n) G(K,n)^T
 *     dx = g w      becomes   DX(C,n) = W(C,K) G(K,n)
 * and a bias per feature is one per row, which the first product adds by itself. In bf16
 * and fp16 sums are float, and so are dw, and what the model's last layer gives out.
 */
#include "worker/cuda/layers_impl.h"

#include "common/mem.h"

static const char *const what = "a linear layer";

/* A stored matrix, and whether it is read transposed. */
struct operand {
    int rows, columns;
    bool transposed;
};

/* Of an address that begins at this many bytes of a block: cudaMalloc()'s are on 256. */
static uint32_t alignment(size_t bytes)
{
    size_t lowest = bytes & -bytes;
    return bytes == 0 || lowest > 256 ? 256 : (uint32_t)lowest;
}

/* What a product may count on: of its operands' addresses, in bytes. */
struct aligned {
    uint32_t a, b, d;
};

static int product_choose(const struct layers *net, struct product *p, struct aligned at,
                          struct ddp_err *err)
{
    cublasLtMatmulPreference_t wish;
    cublasLtMatmulHeuristicResult_t found;
    size_t most = WORKSPACE;
    int n = 0;
    if (check_blas(cublasLtMatmulPreferenceCreate(&wish), what, err) < 0)
        return -1;
    const struct {
        cublasLtMatmulPreferenceAttributes_t name;
        const void *value;
        size_t size;
    } wishes[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most, sizeof most},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &at.a, sizeof at.a},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &at.b, sizeof at.b},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &at.d, sizeof at.d},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &at.d, sizeof at.d},
    };
    cublasStatus_t rc = CUBLAS_STATUS_SUCCESS;
    for (size_t i = 0; i < ARRAY_LEN(wishes) && rc == CUBLAS_STATUS_SUCCESS; i++)
        rc = cublasLtMatmulPreferenceSetAttribute(wish, wishes[i].name, wishes[i].value,
                                                  wishes[i].size);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = cublasLtMatmulAlgoGetHeuristic(net->blas, p->op, p->a, p->b, p->d, p->d,
                                            wish, 1, &found, &n);
    cublasLtMatmulPreferenceDestroy(wish);
    if (check_blas(rc, what, err) < 0)
        return -1;
    if (n == 0)
        return err_set(err, "%s: cuBLASLt has no algorithm for it", what);
    p->algo = found.algo;
    return 0;
}

static int set(struct product *p, cublasLtMatmulDescAttributes_t name, const void *value,
               size_t size, struct ddp_err *err)
{
    return check_blas(cublasLtMatmulDescSetAttribute(p->op, name, value, size), what,
                      err);
}

/* `d` is of type `out`. */
static int product_make(const struct layers *net, struct product *p, struct operand a,
                        struct operand b, enum cuda_type out, cublasLtEpilogue_t epilogue,
                        const void *bias, struct ddp_err *err)
{
    static const cudaDataType_t types[] = {
        [CUDA_F32] = CUDA_R_32F, [CUDA_BF16] = CUDA_R_16BF, [CUDA_F16] = CUDA_R_16F};
    cublasComputeType_t compute = net->settings.precision == PRECISION_TF32
                                      ? CUBLAS_COMPUTE_32F_FAST_TF32
                                      : CUBLAS_COMPUTE_32F;
    cublasOperation_t op_a = a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t op_b = b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    uint64_t m = (uint64_t)(a.transposed ? a.columns : a.rows);
    uint64_t n = (uint64_t)(b.transposed ? b.rows : b.columns);
    cudaDataType_t type = types[net->type];
    if (check_blas(cublasLtMatmulDescCreate(&p->op, compute, CUDA_R_32F), what, err) <
            0 ||
        check_blas(cublasLtMatrixLayoutCreate(&p->a, type, (uint64_t)a.rows,
                                              (uint64_t)a.columns, a.rows),
                   what, err) < 0 ||
        check_blas(cublasLtMatrixLayoutCreate(&p->b, type, (uint64_t)b.rows,
                                              (uint64_t)b.columns, b.rows),
                   what, err) < 0 ||
        check_blas(cublasLtMatrixLayoutCreate(&p->d, types[out], m, n, (int64_t)m), what,
                   err) < 0 ||
        set(p, CUBLASLT_MATMUL_DESC_TRANSA, &op_a, sizeof op_a, err) < 0 ||
        set(p, CUBLASLT_MATMUL_DESC_TRANSB, &op_b, sizeof op_b, err) < 0 ||
        set(p, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue, err) < 0 ||
        (bias && set(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias, err) < 0))
        return -1;
    return 0;
}

static int multiply(const struct layers *net, const struct product *p, const void *a,
                    const void *b, void *d, const char *name, struct ddp_err *err)
{
    float one = 1, zero = 0;
    return check_blas(cublasLtMatmul(net->blas, p->op, &one, a, p->a, b, p->b, &zero, d,
                                     p->d, d, p->d, &p->algo, net->workspace, WORKSPACE,
                                     net->stream),
                      name, err);
}

/* The model's outputs are float, whatever the layers are. */
static bool gives_floats(const struct layers *net, int i)
{
    return i == net->nlayers - 1;
}

int linear_plan(const struct layers *net, int i, int n, struct layer_plan *p,
                struct ddp_err *err)
{
    const struct layer *l = &net->layers[i];
    int C = (int)l->inputs, K = l->K;
    enum cuda_type out = gives_floats(net, i) ? CUDA_F32 : net->type;
    const void *bias = gives_floats(net, i) ? net->weights + place_of(net, l->bias)
                                            : weights_at(net, l->bias);
    uint32_t w = alignment(place_of(net, l->weight) * type_size(net->type));
    uint32_t dw = alignment(place_of(net, l->weight) * sizeof(float));
    uint32_t at_bias = alignment((size_t)(uintptr_t)bias);
    if (product_make(net, &p->forward, (struct operand){C, K, true},
                     (struct operand){C, n, false}, out,
                     l->spec->relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS,
                     bias, err) < 0 ||
        product_choose(net, &p->forward, (struct aligned){w, 256, at_bias}, err) < 0 ||
        product_make(net, &p->weights, (struct operand){C, n, false},
                     (struct operand){K, n, true}, CUDA_F32, CUBLASLT_EPILOGUE_DEFAULT,
                     NULL, err) < 0 ||
        product_choose(net, &p->weights, (struct aligned){256, 256, dw}, err) < 0)
        return err_prefix(err, "'%s'", l->spec->name);
    if (l->in >= 0 &&
        (product_make(net, &p->inputs, (struct operand){C, K, false},
                      (struct operand){K, n, false}, net->type, CUBLASLT_EPILOGUE_DEFAULT,
                      NULL, err) < 0 ||
         product_choose(net, &p->inputs, (struct aligned){w, 256, 256}, err) < 0))
        return err_prefix(err, "'%s'", l->spec->name);
    return 0;
}

int linear_forward(struct layers *net, int i, const struct layer_plan *p,
                   struct ddp_err *err)
{
    const struct layer *l = &net->layers[i];
    return multiply(net, &p->forward, weights_at(net, l->weight), input_of(net, l), l->y,
                    l->spec->name, err);
}

int linear_back(struct layers *net, int i, int n, const struct layer_plan *p, float scale,
                struct ddp_err *err)
{
    const struct layer *l = &net->layers[i];
    void *dy = net->slots[l->slot];
    float *dw = net->grads + place_of(net, l->weight),
          *db = net->grads + place_of(net, l->bias);
    struct cuda_map map = {net->type, true, n, l->K, 1, 1};
    if (!net->bare)
        cuda_mask_sum(l->spec->relu ? l->y : NULL, dy, scale, map, net->room, db,
                      net->stream);
    if (multiply(net, &p->weights, input_of(net, l), dy, dw, l->spec->name, err) < 0)
        return -1;
    return l->in < 0 ? 0
                     : multiply(net, &p->inputs, weights_at(net, l->weight), dy,
                                gradient_of(net, l->in), l->spec->name, err);
}
