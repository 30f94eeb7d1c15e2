/* worker/cuda/product.c - see products.h: linear layers by cuBLASLt
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
#include <stdlib.h>
#include <string.h>

static const char *const what = "a linear layer";

enum { MOST_FOUND = 8 };

/* A stored matrix, and whether it is read transposed. */
struct operand {
    int rows, columns;
    bool transposed;
};

/* The alignment of an address at this offset in a block: cudaMalloc() aligns to 256. */
static uint32_t alignment(size_t bytes)
{
    size_t lowest = bytes & -bytes;
    return bytes == 0 || lowest > 256 ? 256 : (uint32_t)lowest;
}

/* The alignment of a product's operands, in bytes. */
struct aligned {
    uint32_t a, b, d;
};

/* Asks cuBLASLt for up to `most` algorithms, best first; returns how many, or -1.
 * `strict`: sums in float only, partial sums included. */
static int find(const struct layers *net, const struct product *p, struct aligned at,
                bool strict, cublasLtMatmulHeuristicResult_t *found, int most,
                struct ddp_err *err)
{
    cublasLtMatmulPreference_t wish;
    size_t room = WORKSPACE;
    uint32_t reductions =
        strict ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE : CUBLASLT_REDUCTION_SCHEME_MASK;
    int n = 0;
    TRY(check_blas(cublasLtMatmulPreferenceCreate(&wish), what, err));
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
    cublasStatus_t rc = CUBLAS_STATUS_SUCCESS;
    for (size_t i = 0; i < ARRAY_LEN(wishes) && rc == CUBLAS_STATUS_SUCCESS; i++)
        rc = cublasLtMatmulPreferenceSetAttribute(wish, wishes[i].name, wishes[i].value,
                                                  wishes[i].size);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = cublasLtMatmulAlgoGetHeuristic(net->blas, p->op, p->a, p->b, p->d, p->d,
                                            wish, most, found, &n);
    cublasLtMatmulPreferenceDestroy(wish);
    return check_blas(rc, what, err) < 0 ? -1 : n;
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
    TRY(check_blas(cublasLtMatmulDescCreate(&p->op, compute, CUDA_R_32F), what, err));
    TRY(check_blas(cublasLtMatrixLayoutCreate(&p->a, type, (uint64_t)a.rows,
                                              (uint64_t)a.columns, a.rows),
                   what, err));
    TRY(check_blas(cublasLtMatrixLayoutCreate(&p->b, type, (uint64_t)b.rows,
                                              (uint64_t)b.columns, b.rows),
                   what, err));
    TRY(check_blas(cublasLtMatrixLayoutCreate(&p->d, types[out], m, n, (int64_t)m), what,
                   err));
    TRY(set(p, CUBLASLT_MATMUL_DESC_TRANSA, &op_a, sizeof op_a, err));
    TRY(set(p, CUBLASLT_MATMUL_DESC_TRANSB, &op_b, sizeof op_b, err));
    TRY(set(p, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue, err));
    if (bias)
        TRY(set(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias, err));
    return 0;
}

/* d = a b, plus `added`, if not NULL, which may be d. */
static int multiply(const struct layers *net, const struct product *p,
                    const struct algorithm *how, const void *a, const void *b,
                    const void *added, void *d, const char *name, struct ddp_err *err)
{
    float one = 1, zero = 0;
    return check_blas(cublasLtMatmul(net->blas, p->op, &one, a, p->a, b, p->b,
                                     added ? &one : &zero, added ? added : d, p->d, d,
                                     p->d, &how->blas, net->workspace, WORKSPACE,
                                     net->stream),
                      name, err);
}

static bool dense(const struct layer *l)
{
    return l->spec->kind == LAYER_DENSE;
}

static bool linear_has(const struct layers *net, int i, enum pass pass)
{
    return pass != PASS_INPUTS || net->layers[i].in >= 0;
}

/* The bias that the forward product's epilogue adds; NULL: none. */
static const void *bias_of(const struct layers *net, int i)
{
    const struct param *bias = net->layers[i].bias;
    return !bias                             ? NULL
           : output_type(net, i) != CUDA_F32 ? weights_at(net, bias)
                                             : net->weights + place_of(net, bias);
}

/* The array that is added to the product, which may be the output itself; NULL: none. */
static const void *added_to(const struct layers *net, int i, enum pass pass)
{
    const struct layer *l = &net->layers[i];
    return pass == PASS_FORWARD && l->shortcut >= 0 ? net->layers[l->shortcut].y
           : pass == PASS_INPUTS && l->adds         ? gradient_of(net, l->in)
                                                    : NULL;
}

static struct aligned aligned_as(const struct layers *net, int i, enum pass pass)
{
    size_t at = place_of(net, net->layers[i].weight);
    uint32_t w = alignment(at * type_size(net->type));
    if (pass == PASS_WEIGHTS)
        return (struct aligned){256, 256, alignment(at * sizeof(float))};
    return pass == PASS_INPUTS
               ? (struct aligned){w, 256, 256}
               : (struct aligned){w, 256, alignment((size_t)(uintptr_t)bias_of(net, i))};
}

static int make(const struct layers *net, int i, struct layer_plan *p, enum pass pass,
                struct ddp_err *err)
{
    const struct layer *l = &net->layers[i];
    int C = (int)(l->inputs / l->rows), K = l->K, n = p->n * (int)l->rows;
    struct operand w = {dense(l) ? K : C, dense(l) ? C : K,
                        (pass == PASS_FORWARD) != dense(l)};
    struct operand x = {C, n, pass == PASS_WEIGHTS && dense(l)},
                   g = {K, n, pass == PASS_WEIGHTS && !dense(l)};
    struct product *to = &p->products[pass];
    if (pass == PASS_FORWARD)
        return product_make(net, to, w, x, output_type(net, i),
                            l->spec->relu ? CUBLASLT_EPILOGUE_RELU_BIAS
                            : l->bias     ? CUBLASLT_EPILOGUE_BIAS
                                          : CUBLASLT_EPILOGUE_DEFAULT,
                            bias_of(net, i), err);
    if (pass == PASS_INPUTS)
        return product_make(net, to, w, g, net->type, CUBLASLT_EPILOGUE_DEFAULT, NULL,
                            err);
    return product_make(net, to, dense(l) ? g : x, dense(l) ? x : g, CUDA_F32,
                        CUBLASLT_EPILOGUE_DEFAULT, NULL, err);
}

static int linear_usual(struct layers *net, int i, const struct layer_plan *p,
                        enum pass pass, int *at, struct algorithm *out,
                        struct ddp_err *err)
{
    cublasLtMatmulHeuristicResult_t all[MOST_FOUND];
    const char *name = net->layers[i].spec->name;
    int n = find(net, &p->products[pass], aligned_as(net, i, pass), false, all,
                 MOST_FOUND, err);
    if (n < 0)
        return err_prefix(err, "'%s'", name);
    while (*at < n) {
        const cublasLtMatmulHeuristicResult_t *found = &all[(*at)++];
        out->blas = found->algo;
        if (found->state == CUBLAS_STATUS_SUCCESS)
            return 0;
    }
    return err_set(err, "'%s': %s: cuBLASLt has no algorithm for it", name, what);
}

static int linear_plan(struct layers *net, int i, int n, struct layer_plan *p,
                       struct ddp_err *err)
{
    for (int pass = 0; pass < PASSES; pass++) {
        int at = 0;
        if (!linear_has(net, i, pass))
            continue;
        if (make(net, i, p, pass, err) < 0)
            return err_prefix(err, "'%s'", net->layers[i].spec->name);
        TRY(linear_usual(net, i, p, pass, &at, &p->how[pass], err));
    }
    return 0;
}

/* ---- available algorithms ---- */

enum { WORDS = ARRAY_LEN(((cublasLtMatmulAlgo_t *)0)->data) };

static int linear_list(struct layers *net, int i, const struct layer_plan *p,
                       enum pass pass, char (*names)[ALGORITHM_NAME], int most)
{
    cublasLtMatmulHeuristicResult_t found[MOST_FOUND];
    struct ddp_err ignored;
    int listed = 0, n = find(net, &p->products[pass], aligned_as(net, i, pass), true,
                             found, MOST_FOUND, &ignored);
    for (int k = 0; k < n && listed < most; k++) {
        if (found[k].state != CUBLAS_STATUS_SUCCESS ||
            memcmp(&found[k].algo, &p->how[pass].blas, sizeof found[k].algo) == 0)
            continue;
        char *name = names[listed++];
        size_t used = (size_t)snprintf(name, ALGORITHM_NAME, "b");
        for (int word = 0; word < WORDS; word++) /* zero words are written short */
            used += (size_t)snprintf(name + used, ALGORITHM_NAME - used, "%s%llx",
                                     word ? "," : "",
                                     (unsigned long long)found[k].algo.data[word]);
    }
    return listed;
}

static bool linear_build(struct layers *net, int i, const struct layer_plan *p,
                         enum pass pass, const char *name, struct algorithm *out)
{
    const struct product *of = &p->products[pass];
    cublasLtMatmulHeuristicResult_t result;
    const char *at = name + 1;
    *out = (struct algorithm){0};
    if (*name != 'b')
        return false;
    for (int word = 0; word < WORDS; word++) {
        char *next;
        out->blas.data[word] = strtoull(at, &next, 16);
        if (next == at || *next != (word < WORDS - 1 ? ',' : '\0'))
            return false;
        at = next + 1;
    }
    return cublasLtMatmulAlgoCheck(net->blas, of->op, of->a, of->b, of->d, of->d,
                                   &out->blas, &result) == CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= WORKSPACE;
}

static void linear_key(const struct layers *net, int i, const struct layer_plan *p,
                       enum pass pass, char *text, size_t size)
{
    static const char *const passes[] = {"linear", "weight", "input"};
    const struct layer *l = &net->layers[i];
    struct aligned at = aligned_as(net, i, pass);
    snprintf(text, size, "%s%s %zu %zux%d %s%s%s %u/%u/%u%s", dense(l) ? "dense " : "",
             passes[pass], (size_t)p->n * l->rows, l->inputs / l->rows, l->K,
             precision_names[net->settings.precision],
             output_type(net, i) != net->type ? " out" : "",
             added_to(net, i, pass) ? " add" : "", at.a, at.b, at.d,
             l->spec->relu ? " relu" : "");
}

/* ---- running ---- */

static void linear_operands(const struct layers *net, int i, int n, enum pass pass,
                            struct operands *out)
{
    const struct layer *l = &net->layers[i];
    size_t x = (size_t)n * l->inputs, y = (size_t)n * l->rows * (size_t)l->K;
    enum cuda_type t = net->type;
    void *at = l->in < 0 ? net->x : net->layers[l->in].y, *dy = gradient_of(net, i);
    *out = (struct operands){.adds = pass == PASS_INPUTS && l->adds};
    if (pass == PASS_FORWARD && l->shortcut >= 0)
        out->in[1].at = net->layers[l->shortcut].y, out->in[1].n = y, out->in[1].type = t;
    if (pass != PASS_INPUTS)
        out->in[0].at = at, out->in[0].n = x, out->in[0].type = t;
    if (pass != PASS_FORWARD)
        out->in[1].at = dy, out->in[1].n = y, out->in[1].type = t;
    if (pass == PASS_FORWARD)
        out->out.at = l->y, out->out.n = y, out->out.type = output_type(net, i);
    else if (pass == PASS_WEIGHTS)
        out->out.at = net->grads + place_of(net, l->weight),
        out->out.n = l->weight->count, out->out.type = CUDA_F32;
    else
        out->out.at = gradient_of(net, l->in), out->out.n = x, out->out.type = t;
}

/* Rows from `from` on of the layer's input; `more`: add to the weight's gradient. */
int linear_rows(struct layers *net, int i, const struct layer_plan *p, enum pass pass,
                const struct algorithm *how, size_t from, bool more, struct ddp_err *err)
{
    const struct layer *l = &net->layers[i];
    const struct product *of = &p->products[pass];
    const char *name = l->spec->name;
    size_t C = from * (l->inputs / l->rows) * type_size(net->type);
    const char *x = (const char *)input_of(net, l) + C, *added = added_to(net, i, pass);
    const void *w = weights_at(net, l->weight), *dy = gradient_of(net, i);
    float *dw = net->grads + place_of(net, l->weight);
    if (pass == PASS_FORWARD)
        return multiply(net, of, how, w, x, added, l->y, name, err);
    if (pass == PASS_WEIGHTS)
        return multiply(net, of, how, dense(l) ? dy : x, dense(l) ? x : dy,
                        more ? dw : NULL, dw, name, err);
    return multiply(net, of, how, w, dy, added, (char *)gradient_of(net, l->in) + C, name,
                    err);
}

static int linear_play(struct layers *net, int i, const struct layer_plan *p,
                       enum pass pass, const struct algorithm *how, struct ddp_err *err)
{
    return linear_rows(net, i, p, pass, how, 0, false, err);
}

static const struct products linear_products = {.plan = linear_plan,
                                                .usual = linear_usual,
                                                .has = linear_has,
                                                .play = linear_play,
                                                .list = linear_list,
                                                .build = linear_build,
                                                .key = linear_key,
                                                .operands = linear_operands};

static int linear_forward(struct layers *net, int i, const struct layer_plan *p,
                          bool learn, struct ddp_err *err)
{
    return linear_play(net, i, p, PASS_FORWARD, &p->how[PASS_FORWARD], err);
}

/* The gradient of what a dense layer has added to its product. */
static int shortcut_back(struct layers *net, int i, int n, struct ddp_err *err)
{
    const struct layer *l = &net->layers[i];
    void *to = gradient_of(net, l->shortcut);
    const void *dy = gradient_of(net, i);
    size_t count = l->outputs * (size_t)n;
    if (model_used_after(net->host, i, l->shortcut))
        cuda_add(to, dy, (int64_t)count, net->type, net->stream);
    else
        return check_cuda(cudaMemcpyAsync(to, dy, count * type_size(net->type),
                                          cudaMemcpyDeviceToDevice, net->stream),
                          l->spec->name, err);
    return 0;
}

static int linear_back(struct layers *net, int i, const struct layer_plan *p, float scale,
                       struct ddp_err *err)
{
    const struct layer *l = &net->layers[i];
    struct cuda_map map = {net->type, p->n * (int)l->rows, l->K, 1, 1};
    if (!net->bare)
        cuda_mask_sum(l->spec->relu ? l->y : NULL, gradient_of(net, i), scale, map,
                      net->room, net->grads + place_of(net, l->bias), net->stream);
    TRY(linear_play(net, i, p, PASS_WEIGHTS, &p->how[PASS_WEIGHTS], err));
    if (linear_has(net, i, PASS_INPUTS))
        TRY(linear_play(net, i, p, PASS_INPUTS, &p->how[PASS_INPUTS], err));
    return l->shortcut < 0 || net->bare ? 0 : shortcut_back(net, i, p->n, err);
}

const struct layer_op layer_linear = {&linear_products, linear_forward, linear_back};
