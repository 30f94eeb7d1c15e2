/* worker/cuda/attention_graph.c - see dnn_graph.h
 *
 * cuDNN recognises a graph of products, softmax and mask as attention and executes it as
 * one or two kernels, without a T x T matrix. The graphs are those that cudnn-frontend
 * makes ("scaled dot product attention"); layouts are kernels.h's.
 *
 * Matrices are [n, heads, rows, columns]. cuDNN takes keys transposed, in backward
 * values, too. What is virtual has no memory.
 */
#include "worker/cuda/dnn_graph.h"

#include "common/mem.h"

#include <math.h>

enum uid {
    VIRTUAL, /* has no memory; the builder counts these from UIDS on */
    Q,
    K,
    V,
    O,
    STATS,
    SCALE,
    LOWEST,
    ONE,
    DO,
    DQ,
    DK,
    DV,
    DOTS,
    DQ_SUM,
    UIDS
};

typedef cudnnBackendDescriptor_t part;

static const cudnnDataType_t in_float = CUDNN_DATA_FLOAT; /* of sums */

struct builder {
    struct dnn_graph *g;
    const struct cuda_attention *s;
    enum uid uid; /* of the next virtual tensor */
    part ops[32];
    int n;
};

/* ---- tensors ---- */

/* [n, heads, T, D]: one head after the other; with a `step`, a token's numbers of all
 * heads are together, and those of the next token so far apart. */
static part tensor(struct builder *b, enum uid uid, cudnnDataType_t type, int heads,
                   int64_t D, int64_t step, bool transposed)
{
    int64_t T = b->s->T, row = step ? step : D, head = step ? D : T * D;
    struct dnn_tensor t = {.uid = uid ? uid : b->uid++,
                           .dims = {b->s->n, heads, T, D},
                           .strides = {step ? T * step : heads * head, head, row, 1},
                           .type = type,
                           .alignment = D == 1 && uid != VIRTUAL ? 4 : 16,
                           .is_virtual = uid == VIRTUAL};
    if (transposed) {
        t.dims[2] = D, t.dims[3] = T;
        t.strides[2] = 1, t.strides[3] = row;
    }
    return dnn_tensor(b->g, &t);
}

/* Of queries, keys or values. */
static part token(struct builder *b, enum uid uid, bool transposed)
{
    const struct cuda_attention *s = b->s;
    int64_t step = (int64_t)(s->heads + 2 * s->kv_heads) * s->D;
    int heads = uid == Q || uid == DQ ? s->heads : s->kv_heads;
    return tensor(b, uid, dnn_type(s->type), heads, s->D, step, transposed);
}

static part output(struct builder *b, enum uid uid)
{
    return tensor(b, uid, dnn_type(b->s->type), b->s->heads, b->s->D,
                  (int64_t)b->s->heads * b->s->D, false);
}

/* A number for each query, [n, T, heads]. */
static part per_query(struct builder *b, enum uid uid)
{
    return tensor(b, uid, CUDNN_DATA_FLOAT, b->s->heads, 1, b->s->heads, false);
}

static part number(struct builder *b, enum uid uid)
{
    return dnn_tensor(b->g, &(struct dnn_tensor){.uid = uid,
                                                 .dims = {1, 1, 1, 1},
                                                 .strides = {1, 1, 1, 1},
                                                 .type = CUDNN_DATA_FLOAT,
                                                 .alignment = 4,
                                                 .by_value = true});
}

/* A virtual one. */
static part fresh(struct builder *b, cudnnDataType_t type, int columns)
{
    return tensor(b, VIRTUAL, type, b->s->heads, columns, 0, false);
}

/* ---- operations ---- */

/* Returns `out`, which is one of its tensors. */
static part operate(struct builder *b, cudnnBackendDescriptorType_t type,
                    const struct dnn_attribute *all, size_t n, part out)
{
    b->ops[b->n++] = dnn_make(b->g, type, all, n);
    return out;
}

static part multiply(struct builder *b, part x, part y, part out)
{
    const struct dnn_attribute sums = {CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE,
                                       1, &in_float};
    part how = dnn_make(b->g, CUDNN_BACKEND_MATMUL_DESCRIPTOR, &sums, 1);
    const struct dnn_attribute all[] = {DNN_PART(CUDNN_ATTR_OPERATION_MATMUL_ADESC, x),
                                        DNN_PART(CUDNN_ATTR_OPERATION_MATMUL_BDESC, y),
                                        DNN_PART(CUDNN_ATTR_OPERATION_MATMUL_CDESC, out),
                                        DNN_PART(CUDNN_ATTR_OPERATION_MATMUL_DESC, how)};
    return operate(b, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, all, ARRAY_LEN(all),
                   out);
}

/* `y` and `test` may be NULL; `axis` only counts for GEN_INDEX. */
static part pointwise(struct builder *b, cudnnPointwiseMode_t mode, part x, part y,
                      part test, int64_t axis, part out)
{
    cudnnDataType_t type =
        mode == CUDNN_POINTWISE_CMP_GE ? CUDNN_DATA_BOOLEAN : CUDNN_DATA_FLOAT;
    const struct dnn_attribute does[] = {
        {CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode},
        {CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &type},
        {CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, mode == CUDNN_POINTWISE_GEN_INDEX,
         &axis}};
    part how = dnn_make(b->g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, does, ARRAY_LEN(does));
    const struct dnn_attribute all[] = {
        DNN_PART(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how),
        DNN_PART(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x),
        DNN_PART(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, y),
        DNN_PART(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, test),
        DNN_PART(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, out)};
    return operate(b, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, all, ARRAY_LEN(all),
                   out);
}

/* Of each pair of numbers, or of each number of x (y NULL), a new T x T matrix. */
static part each(struct builder *b, cudnnPointwiseMode_t mode, part x, part y)
{
    return pointwise(b, mode, x, y, NULL, 0, fresh(b, CUDNN_DATA_FLOAT, b->s->T));
}

static part reduce(struct builder *b, cudnnReduceTensorOp_t by, part x, part out)
{
    const struct dnn_attribute does[] = {
        {CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &by},
        {CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &in_float}};
    part how = dnn_make(b->g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR, does, ARRAY_LEN(does));
    const struct dnn_attribute all[] = {
        DNN_PART(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x),
        DNN_PART(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, out),
        DNN_PART(CUDNN_ATTR_OPERATION_REDUCTION_DESC, how)};
    return operate(b, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, all, ARRAY_LEN(all),
                   out);
}

static part reshape(struct builder *b, part x, part out)
{
    const struct dnn_attribute all[] = {
        DNN_PART(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x),
        DNN_PART(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, out)};
    return operate(b, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, all, ARRAY_LEN(all),
                   out);
}

/* ---- the graphs ---- */

/* Keys behind a query have the lowest logit. */
static part mask(struct builder *b, part logits)
{
    part at[2];
    for (int i = 0; i < 2; i++)
        at[i] = pointwise(b, CUDNN_POINTWISE_GEN_INDEX, logits, NULL, NULL, 2 + i,
                          fresh(b, CUDNN_DATA_INT32, b->s->T));
    part sees = pointwise(b, CUDNN_POINTWISE_CMP_GE, at[0], at[1], NULL, 0,
                          fresh(b, CUDNN_DATA_BOOLEAN, b->s->T));
    return pointwise(b, CUDNN_POINTWISE_BINARY_SELECT, logits, number(b, LOWEST), sees, 0,
                     fresh(b, CUDNN_DATA_FLOAT, b->s->T));
}

static part logits(struct builder *b, part q, part kt, part scale)
{
    return each(b, CUDNN_POINTWISE_MUL,
                multiply(b, q, kt, fresh(b, CUDNN_DATA_FLOAT, b->s->T)), scale);
}

static void forward(struct builder *b)
{
    part s = mask(b, logits(b, token(b, Q, false), token(b, K, true), number(b, SCALE)));
    part most = reduce(b, CUDNN_REDUCE_TENSOR_MAX, s, fresh(b, CUDNN_DATA_FLOAT, 1));
    part e = each(b, CUDNN_POINTWISE_EXP, each(b, CUDNN_POINTWISE_SUB, s, most), NULL);
    part sum = reduce(b, CUDNN_REDUCE_TENSOR_ADD, e, fresh(b, CUDNN_DATA_FLOAT, 1));
    part log = pointwise(b, CUDNN_POINTWISE_LOG, sum, NULL, NULL, 0,
                         fresh(b, CUDNN_DATA_FLOAT, 1));
    pointwise(b, CUDNN_POINTWISE_ADD, most, log, NULL, 0, per_query(b, STATS));
    part p = pointwise(b, CUDNN_POINTWISE_DIV, e, sum, NULL, 0,
                       fresh(b, dnn_type(b->s->type), b->s->T));
    multiply(b, p, token(b, V, false), output(b, O));
}

/* The sum of the products for the heads of queries that share keys and values. */
static void multiply_shared(struct builder *b, part xt, part y, part out)
{
    if (b->s->heads == b->s->kv_heads) {
        multiply(b, xt, y, out);
        return;
    }
    part all = multiply(b, xt, y, fresh(b, dnn_type(b->s->type), b->s->D));
    reduce(b, CUDNN_REDUCE_TENSOR_ADD, all, out);
}

static part turned(struct builder *b, part x)
{
    return reshape(
        b, x, tensor(b, VIRTUAL, dnn_type(b->s->type), b->s->heads, b->s->T, 0, true));
}

static void backward(struct builder *b)
{
    const struct cuda_attention *s = b->s;
    part q = token(b, Q, false), kt = token(b, K, true), vt = token(b, V, true);
    part dy = output(b, DO), scale = number(b, SCALE);
    part dots = pointwise(b, CUDNN_POINTWISE_MUL, dy, output(b, O), NULL, 0,
                          fresh(b, CUDNN_DATA_FLOAT, s->D));
    dots = reduce(b, CUDNN_REDUCE_TENSOR_ADD, dots, fresh(b, CUDNN_DATA_FLOAT, 1));
    dots = pointwise(b, CUDNN_POINTWISE_MUL, dots, number(b, ONE), NULL, 0,
                     per_query(b, DOTS));
    part p = each(b, CUDNN_POINTWISE_SUB, logits(b, q, kt, scale), per_query(b, STATS));
    p = each(b, CUDNN_POINTWISE_EXP, mask(b, p), NULL);
    multiply_shared(b, turned(b, p), dy, token(b, DV, false));
    part ds = multiply(b, dy, vt, fresh(b, CUDNN_DATA_FLOAT, s->T));
    ds = each(b, CUDNN_POINTWISE_MUL, each(b, CUDNN_POINTWISE_SUB, ds, dots), p);
    ds = each(b, CUDNN_POINTWISE_MUL, ds, scale);
    multiply_shared(b, turned(b, ds), q, token(b, DK, false));
    part k = reshape(b, kt, token(b, VIRTUAL, false));
    if (b->g->deterministic) { /* without a sum that blocks add to in any order */
        multiply(b, ds, k, token(b, DQ, false));
        return;
    }
    part sum =
        multiply(b, ds, k, tensor(b, DQ_SUM, CUDNN_DATA_FLOAT, s->heads, s->D, 0, false));
    pointwise(b, CUDNN_POINTWISE_IDENTITY, sum, NULL, NULL, 0, token(b, DQ, false));
}

struct dnn_graph *attention_graph_make(cudnnHandle_t dnn, const struct cuda_attention *s,
                                       bool back, bool deterministic)
{
    struct builder b = {dnn_graph_make(true, deterministic), s, .uid = UIDS};
    if (back)
        backward(&b);
    else
        forward(&b);
    dnn_graph_list(b.g, dnn, b.ops, b.n);
    return b.g;
}

void attention_graph_play(cudnnBackendDescriptor_t plan, cudnnHandle_t dnn,
                          const struct cuda_attention *s,
                          const struct attention_memory *m, void *workspace)
{
    static const float one = 1, lowest = -INFINITY;
    float scale = 1 / sqrtf((float)s->D);
    size_t head = (size_t)s->D * 2, k = head * (size_t)s->heads;
    size_t v = k + head * (size_t)s->kv_heads;
    const char *qkv = m->qkv, *dqkv = m->dqkv;
    const struct {
        enum uid uid;
        const void *at;
    } all[] = {
        {Q, qkv},        {K, qkv + k},        {V, qkv + v},      {O, m->y},
        {STATS, m->lse}, {SCALE, &scale},     {LOWEST, &lowest}, {ONE, &one},
        {DO, m->dy},     {DQ, dqkv},          {DK, dqkv + k},    {DV, dqkv + v},
        {DOTS, m->dots}, {DQ_SUM, m->dq_sum},
    };
    int64_t uids[ARRAY_LEN(all)];
    const void *places[ARRAY_LEN(all)];
    int n = 0;
    for (size_t i = 0; i < ARRAY_LEN(all); i++) {
        if (all[i].uid > (!m->dy ? LOWEST : !m->dq_sum ? DOTS : DQ_SUM))
            continue;
        uids[n] = all[i].uid;
        places[n++] = all[i].at;
    }
    dnn_graph_play(plan, dnn, n, uids, places, workspace);
}
