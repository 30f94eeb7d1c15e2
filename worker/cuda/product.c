/* worker/cuda/product.c - see layers_impl.h: linear layers by cuBLASLt
 *
 * cuBLASLt is column-major. A row-major y[n,K] is a column-major (K, n), so that
 *     y = x w^T     becomes   Y(K,n) = W(C,K)^T X(C,n)
 *     dw = g^T x    becomes   DW(C,K) = X(C,n) G(K,n)^T
 *     dx = g w      becomes   DX(C,n) = W(C,K) G(K,n)
 * and the bias of a feature is one per row, which the first product's epilogue adds. A
 * dense layer's w is [C,K], which is W(K,C):
 *     y = x w       becomes   Y(K,n) = W(K,C) X(C,n)
 *     dw = x^T g    becomes   DW(K,C) = G(K,n) X(C,n)^T
 *     dx = g w^T    becomes   DX(C,n) = W(K,C)^T G(K,n)
 * In bf16 and fp16 sums are float, and so are dw and the model's outputs.
 */
#include "worker/cuda/layers_impl.h"

#include "common/mem.h"

#include <stdio.h>

bool blas_note(cublasStatus_t rc)
{
    if (rc != CUBLAS_STATUS_SUCCESS)
        cuda_fail("%s: cuBLASLt: %s", cuda_doing_now(), cublasLtGetStatusString(rc));
    return !cuda_failed();
}

/* A stored matrix, and whether it is read transposed. */
struct operand {
    int rows, columns;
    bool transposed;
};

enum { BLOCK = 256 }; /* the alignment of a block, in bytes */

/* The alignment of a product's operands. */
struct aligned {
    uint32_t a, b, d;
};

static void set(struct product *p, cublasLtMatmulDescAttributes_t name, const void *value,
                size_t size)
{
    BLAS(cublasLtMatmulDescSetAttribute(p->op, name, value, size));
}

/* `d` is of type `out`. */
static void product_make(const struct layers *net, struct product *p, struct operand a,
                         struct operand b, enum cuda_type out,
                         cublasLtEpilogue_t epilogue, const void *bias)
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
    BLAS(cublasLtMatmulDescCreate(&p->op, compute, CUDA_R_32F));
    BLAS(cublasLtMatrixLayoutCreate(&p->a, type, (uint64_t)a.rows, (uint64_t)a.columns,
                                    a.rows));
    BLAS(cublasLtMatrixLayoutCreate(&p->b, type, (uint64_t)b.rows, (uint64_t)b.columns,
                                    b.rows));
    BLAS(cublasLtMatrixLayoutCreate(&p->d, types[out], m, n, (int64_t)m));
    set(p, CUBLASLT_MATMUL_DESC_TRANSA, &op_a, sizeof op_a);
    set(p, CUBLASLT_MATMUL_DESC_TRANSB, &op_b, sizeof op_b);
    set(p, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    if (bias)
        set(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
}

/* d = a b, plus `added`, if not NULL, which may be d. */
static void multiply(const struct layers *net, const struct layer_plan *p, enum pass pass,
                     const void *a, const void *b, const void *added, void *d)
{
    float one = 1, zero = 0;
    const struct product *of = &p->products[pass];
    BLAS(cublasLtMatmul(net->blas, of->op, &one, a, of->a, b, of->b, added ? &one : &zero,
                        added ? added : d, of->d, d, of->d, &p->how[pass].blas,
                        net->workspace, WORKSPACE, net->stream));
}

static bool dense(const struct layer *l)
{
    return l->spec->kind == LAYER_DENSE && !l->spec->outputs_first;
}

/* The bias that the forward product's epilogue adds, in the type of its output; NULL:
 * none. */
static const void *bias_of(const struct layers *net, const struct layer *l)
{
    return l->bias && l->type != CUDA_F32 ? weights_at(net, l->bias)
                                          : weights_of(net, l->bias);
}

/* The array that is added to the product, which may be the output itself; NULL: none. */
static const void *added_to(const struct layers *net, const struct layer *l,
                            enum pass pass)
{
    return pass == PASS_FORWARD && l->shortcut >= 0 ? net->layers[l->shortcut].y
           : pass == PASS_INPUTS && l->adds         ? gradient_of(net, l->in)
                                                    : NULL;
}

/* Of weights the gradients are float. */
static enum cuda_type result_type(const struct layers *net, const struct layer *l,
                                  enum pass pass)
{
    return pass == PASS_WEIGHTS ? CUDA_F32 : pass == PASS_FORWARD ? l->type : net->type;
}

static struct aligned aligned_as(const struct layers *net, const struct layer *l,
                                 enum pass pass)
{
    size_t at = place_of(net, l->weight);
    uint32_t w = aligned_to(at * type_size(net->type), BLOCK);
    if (pass == PASS_WEIGHTS)
        return (struct aligned){BLOCK, BLOCK, aligned_to(at * sizeof(float), BLOCK)};
    return pass == PASS_INPUTS
               ? (struct aligned){w, BLOCK, BLOCK}
               : (struct aligned){w, BLOCK,
                                  aligned_to((size_t)(uintptr_t)bias_of(net, l), BLOCK)};
}

static void linear_describe(struct layers *net, const struct layer *l,
                            struct layer_plan *p, enum pass pass)
{
    int C = (int)(l->inputs / l->rows), K = l->wide.C, n = p->n * (int)l->rows;
    bool forth = pass == PASS_FORWARD, weights = pass == PASS_WEIGHTS;
    struct operand w = {dense(l) ? K : C, dense(l) ? C : K, forth != dense(l)};
    struct operand x = {C, n, weights && dense(l)}, g = {K, n, weights && !dense(l)};
    struct operand a = !weights ? w : dense(l) ? g : x;
    struct operand b = forth || (weights && dense(l)) ? x : g;
    cublasLtEpilogue_t epilogue = forth && l->spec->relu ? CUBLASLT_EPILOGUE_RELU_BIAS
                                  : forth && l->bias     ? CUBLASLT_EPILOGUE_BIAS
                                                         : CUBLASLT_EPILOGUE_DEFAULT;
    product_make(net, &p->products[pass], a, b, result_type(net, l, pass), epilogue,
                 forth ? bias_of(net, l) : NULL);
}

/* Of the algorithms whose sums are in float, partial sums included. */
static int linear_build(struct layers *net, const struct layer *l,
                        const struct layer_plan *p, enum pass pass, struct algorithm *out)
{
    enum { MOST_FOUND = 8 };
    const struct product *of = &p->products[pass];
    struct aligned at = aligned_as(net, l, pass);
    size_t room = WORKSPACE;
    uint32_t reductions = result_type(net, l, pass) == CUDA_F32
                              ? CUBLASLT_REDUCTION_SCHEME_MASK
                              : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const struct {
        cublasLtMatmulPreferenceAttributes_t name;
        const void *value;
        size_t size;
    } wishes[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room, sizeof room},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof reductions},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &at.a, sizeof at.a},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &at.b, sizeof at.b},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &at.d, sizeof at.d},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &at.d, sizeof at.d},
    };
    cublasLtMatmulPreference_t wish = NULL;
    cublasLtMatmulHeuristicResult_t found[MOST_FOUND];
    int n = 0;
    cublasStatus_t rc = cublasLtMatmulPreferenceCreate(&wish);
    for (size_t i = 0; i < ARRAY_LEN(wishes) && rc == CUBLAS_STATUS_SUCCESS; i++)
        rc = cublasLtMatmulPreferenceSetAttribute(wish, wishes[i].name, wishes[i].value,
                                                  wishes[i].size);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = cublasLtMatmulAlgoGetHeuristic(net->blas, of->op, of->a, of->b, of->d, of->d,
                                            wish, MOST_FOUND, found, &n);
    if (wish)
        cublasLtMatmulPreferenceDestroy(wish);
    if (rc == CUBLAS_STATUS_SUCCESS && out->place >= n)
        cuda_fail("'%s': cuBLASLt has no algorithm for it", l->spec->name);
    if (!blas_note(rc) || out->place >= n)
        return -1;
    out->blas = found[out->place].algo;
    return found[out->place].state == CUBLAS_STATUS_SUCCESS;
}

static void linear_key(const struct layers *net, const struct layer *l, int n,
                       enum pass pass, char *text, size_t size)
{
    static const char *const passes[] = {"linear", "weight", "input"};
    struct aligned at = aligned_as(net, l, pass);
    snprintf(text, size, "%s%s %zu %zux%d %s%s%s %u/%u/%u%s", dense(l) ? "dense " : "",
             passes[pass], (size_t)n * l->rows, l->inputs / l->rows, l->wide.C,
             precision_names[net->settings.precision], l->type != net->type ? " out" : "",
             added_to(net, l, pass) ? " add" : "", at.a, at.b, at.d,
             l->spec->relu ? " relu" : "");
}

/* ---- running ---- */

/* Rows from `from` on of the layer's input; `more`: add to the weight's gradient. */
void linear_rows(struct layers *net, const struct layer *l, const struct layer_plan *p,
                 enum pass pass, size_t from, bool more)
{
    size_t C = from * (l->inputs / l->rows) * type_size(net->type);
    const char *x = (const char *)input_of(net, l) + C, *added = added_to(net, l, pass);
    const void *w = weights_at(net, l->weight), *dy = net->slots[l->slot];
    float *dw = grads_of(net, l->weight);
    if (pass == PASS_FORWARD)
        multiply(net, p, pass, w, x, drops(net, l) ? NULL : added, l->y);
    else if (pass == PASS_WEIGHTS)
        multiply(net, p, pass, dense(l) ? dy : x, dense(l) ? x : dy, more ? dw : NULL,
                 dw);
    else
        multiply(net, p, pass, w, dy, added, (char *)gradient_of(net, l->in) + C);
}

static void linear_play(struct layers *net, const struct layer *l,
                        const struct layer_plan *p, enum pass pass)
{
    linear_rows(net, l, p, pass, 0, false);
}

const struct products linear_products = {linear_key, linear_describe, linear_build,
                                         linear_play};

void linear_run(struct layers *net, const struct layer *l, const struct layer_plan *p,
                bool back)
{
    struct cuda_map map = {net->type, p->n * (int)l->rows, l->wide.C, 1, 1};
    if (!back) {
        linear_play(net, l, p, PASS_FORWARD);
        return;
    }
    void *dy = net->slots[l->slot];
    bool relu = l->spec->relu;
    if (l->bias)
        cuda_bias_relu_back(relu ? l->y : NULL, dy, NULL, kept_scale(net, l), map,
                            relu ? dy : NULL, net->room, grads_of(net, l->bias),
                            net->stream);
    linear_play(net, l, p, PASS_WEIGHTS);
    if (has_product(l, PASS_INPUTS))
        linear_play(net, l, p, PASS_INPUTS);
}
