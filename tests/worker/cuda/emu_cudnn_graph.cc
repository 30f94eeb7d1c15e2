/* tests/worker/cuda/emu_cudnn_graph.cc - see emu.h: convolutions and attention by cuDNN's
 * graph API
 *
 * Descriptors refuse what is not in the table: attributes of another name, type or count,
 * parts that are not finalised, changes when they are. Plans are made outside of
 * recordings only. Of the engines some must not be taken; see the table.
 *
 * EMU_CUDNN=refused: the engines that are suggested first fail when they are executed;
 * choosy: the one with tensor cores and those behind it do; loose: none is deterministic;
 * large: all need a large workspace.
 */
#include "tests/worker/cuda/emu_cudnn.h"

#include "tests/worker/cuda/emu_types.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <set>

/* ---- descriptors ---- */

struct value {
    cudnnBackendAttributeType_t type;
    int64_t count;
    std::vector<char> bytes;
};

struct descriptor {
    cudnnBackendDescriptorType_t type;
    bool final = false;
    std::map<cudnnBackendAttributeName_t, value> has;

    template <typename T> const T *all(cudnnBackendAttributeName_t name) const
    {
        return reinterpret_cast<const T *>(has.at(name).bytes.data());
    }
    template <typename T> T one(cudnnBackendAttributeName_t name) const
    {
        return *all<T>(name);
    }
    const descriptor &part(cudnnBackendAttributeName_t name) const
    {
        return **all<descriptor *>(name);
    }
};

static descriptor *of(cudnnBackendDescriptor_t d)
{
    return static_cast<descriptor *>(d);
}

/* What may be set: from how many to how many of them, and of which type parts are. From
 * 0: it may be left out. */
struct rule {
    cudnnBackendDescriptorType_t owner;
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    int64_t from, to;
    int part;
};

enum { NO_PART = -1, ANY_OPERATION = -2 };

#define RANGE(owner, name, type, from, to)                                              \
    {                                                                                   \
        CUDNN_BACKEND_##owner##_DESCRIPTOR, CUDNN_ATTR_##name, CUDNN_TYPE_##type, from, \
            to, NO_PART                                                                 \
    }
#define VALUES(owner, name, type, n) RANGE(owner, name, type, n, n)
#define PLACES(owner, name, type)    RANGE(owner, name, type, 3, 14)
#define MAYBE(owner, name, type)     RANGE(owner, name, type, 0, 1)
#define PARTS(owner, name, from, to, part)                     \
    {                                                          \
        CUDNN_BACKEND_##owner##_DESCRIPTOR, CUDNN_ATTR_##name, \
            CUDNN_TYPE_BACKEND_DESCRIPTOR, from, to, part      \
    }
#define PART(owner, name, part) \
    PARTS(owner, name, 1, 1, CUDNN_BACKEND_##part##_DESCRIPTOR)
#define OPERATION(kind, name, a, b, c)                                                   \
    PART(OPERATION_CONVOLUTION_##kind, OPERATION_CONVOLUTION_##name##_##a, TENSOR),      \
        PART(OPERATION_CONVOLUTION_##kind, OPERATION_CONVOLUTION_##name##_##b, TENSOR),  \
        PART(OPERATION_CONVOLUTION_##kind, OPERATION_CONVOLUTION_##name##_##c, TENSOR),  \
        PART(OPERATION_CONVOLUTION_##kind, OPERATION_CONVOLUTION_##name##_CONV_DESC,     \
             CONVOLUTION),                                                               \
        VALUES(OPERATION_CONVOLUTION_##kind, OPERATION_CONVOLUTION_##name##_ALPHA,       \
               FLOAT, 1),                                                                \
        VALUES(OPERATION_CONVOLUTION_##kind, OPERATION_CONVOLUTION_##name##_BETA, FLOAT, \
               1)

static const rule rules[] = {
    VALUES(TENSOR, TENSOR_DATA_TYPE, DATA_TYPE, 1),
    VALUES(TENSOR, TENSOR_DIMENSIONS, INT64, 4),
    VALUES(TENSOR, TENSOR_STRIDES, INT64, 4),
    VALUES(TENSOR, TENSOR_UNIQUE_ID, INT64, 1),
    VALUES(TENSOR, TENSOR_BYTE_ALIGNMENT, INT64, 1),
    MAYBE(TENSOR, TENSOR_IS_VIRTUAL, BOOLEAN),
    MAYBE(TENSOR, TENSOR_IS_BY_VALUE, BOOLEAN),
    VALUES(POINTWISE, POINTWISE_MODE, POINTWISE_MODE, 1),
    VALUES(POINTWISE, POINTWISE_MATH_PREC, DATA_TYPE, 1),
    MAYBE(POINTWISE, POINTWISE_AXIS, INT64),
    PART(OPERATION_POINTWISE, OPERATION_POINTWISE_PW_DESCRIPTOR, POINTWISE),
    PART(OPERATION_POINTWISE, OPERATION_POINTWISE_XDESC, TENSOR),
    PARTS(OPERATION_POINTWISE, OPERATION_POINTWISE_BDESC, 0, 1,
          CUDNN_BACKEND_TENSOR_DESCRIPTOR),
    PARTS(OPERATION_POINTWISE, OPERATION_POINTWISE_TDESC, 0, 1,
          CUDNN_BACKEND_TENSOR_DESCRIPTOR),
    PART(OPERATION_POINTWISE, OPERATION_POINTWISE_YDESC, TENSOR),
    VALUES(MATMUL, MATMUL_COMP_TYPE, DATA_TYPE, 1),
    PART(OPERATION_MATMUL, OPERATION_MATMUL_DESC, MATMUL),
    PART(OPERATION_MATMUL, OPERATION_MATMUL_ADESC, TENSOR),
    PART(OPERATION_MATMUL, OPERATION_MATMUL_BDESC, TENSOR),
    PART(OPERATION_MATMUL, OPERATION_MATMUL_CDESC, TENSOR),
    VALUES(REDUCTION, REDUCTION_OPERATOR, REDUCTION_OPERATOR_TYPE, 1),
    VALUES(REDUCTION, REDUCTION_COMP_TYPE, DATA_TYPE, 1),
    PART(OPERATION_REDUCTION, OPERATION_REDUCTION_DESC, REDUCTION),
    PART(OPERATION_REDUCTION, OPERATION_REDUCTION_XDESC, TENSOR),
    PART(OPERATION_REDUCTION, OPERATION_REDUCTION_YDESC, TENSOR),
    PART(OPERATION_RESHAPE, OPERATION_RESHAPE_XDESC, TENSOR),
    PART(OPERATION_RESHAPE, OPERATION_RESHAPE_YDESC, TENSOR),
    VALUES(CONVOLUTION, CONVOLUTION_COMP_TYPE, DATA_TYPE, 1),
    VALUES(CONVOLUTION, CONVOLUTION_CONV_MODE, CONVOLUTION_MODE, 1),
    VALUES(CONVOLUTION, CONVOLUTION_SPATIAL_DIMS, INT64, 1),
    VALUES(CONVOLUTION, CONVOLUTION_PRE_PADDINGS, INT64, 2),
    VALUES(CONVOLUTION, CONVOLUTION_POST_PADDINGS, INT64, 2),
    VALUES(CONVOLUTION, CONVOLUTION_DILATIONS, INT64, 2),
    VALUES(CONVOLUTION, CONVOLUTION_FILTER_STRIDES, INT64, 2),
    OPERATION(FORWARD, FORWARD, X, W, Y),
    OPERATION(BACKWARD_FILTER, BWD_FILTER, X, DW, DY),
    OPERATION(BACKWARD_DATA, BWD_DATA, DX, W, DY),
    VALUES(OPERATIONGRAPH, OPERATIONGRAPH_HANDLE, HANDLE, 1),
    PARTS(OPERATIONGRAPH, OPERATIONGRAPH_OPS, 1, 32, ANY_OPERATION),
    PART(ENGINEHEUR, ENGINEHEUR_OPERATION_GRAPH, OPERATIONGRAPH),
    VALUES(ENGINEHEUR, ENGINEHEUR_MODE, HEUR_MODE, 1),
    PART(ENGINE, ENGINE_OPERATION_GRAPH, OPERATIONGRAPH),
    VALUES(ENGINE, ENGINE_GLOBAL_INDEX, INT64, 1),
    VALUES(KNOB_CHOICE, KNOB_CHOICE_KNOB_TYPE, KNOB_TYPE, 1),
    VALUES(KNOB_CHOICE, KNOB_CHOICE_KNOB_VALUE, INT64, 1),
    PART(ENGINECFG, ENGINECFG_ENGINE, ENGINE),
    PARTS(ENGINECFG, ENGINECFG_KNOB_CHOICES, 0, CUDNN_KNOB_TYPE_COUNTS,
          CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR),
    VALUES(EXECUTION_PLAN, EXECUTION_PLAN_HANDLE, HANDLE, 1),
    PART(EXECUTION_PLAN, EXECUTION_PLAN_ENGINE_CONFIG, ENGINECFG),
    PLACES(VARIANT_PACK, VARIANT_PACK_DATA_POINTERS, VOID_PTR),
    PLACES(VARIANT_PACK, VARIANT_PACK_UNIQUE_IDS, INT64),
    VALUES(VARIANT_PACK, VARIANT_PACK_WORKSPACE, VOID_PTR, 1),
};

static const rule *rule_of(const descriptor *d, cudnnBackendAttributeName_t name)
{
    for (const rule &r : rules)
        if (r.owner == d->type && r.name == name)
            return &r;
    return nullptr;
}

static size_t size_of(cudnnBackendAttributeType_t type)
{
    switch (int(type)) {
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
        return 8;
    case CUDNN_TYPE_BOOLEAN:
        return 1;
    default:
        return 4;
    }
}

/* ---- operations ---- */

static emu_tensor tensor_of(const descriptor &t)
{
    const int64_t *d = t.all<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS);
    return {t.one<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE), int(d[0]), int(d[1]),
            int(d[2]), int(d[3])};
}

/* Of its three tensors, x, w and y or their gradients; what it is, and beta. */
struct operation {
    const descriptor *tensors[3];
    emu_convolution is;
    float beta;
};

static operation operation_of(const descriptor &o)
{
    static const cudnnBackendAttributeName_t names[][5] = {
        {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
        {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA},
        {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA}};
    int which = o.type == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR ? 0
                : o.type == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR
                    ? 1
                    : 2;
    operation all;
    for (int i = 0; i < 3; i++)
        all.tensors[i] = &o.part(names[which][i]);
    const descriptor &c = o.part(names[which][3]);
    all.is = {which,
              tensor_of(*all.tensors[0]),
              tensor_of(*all.tensors[2]),
              tensor_of(*all.tensors[1]),
              int(c.one<int64_t>(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS)),
              int(c.one<int64_t>(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES))};
    all.beta = o.one<float>(names[which][4]);
    return all;
}

static bool good_tensor(const descriptor &t)
{
    const int64_t *d = t.all<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS);
    int64_t align = t.one<int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
    return d[0] > 0 && d[1] > 0 && d[2] > 0 && d[3] > 0 && (align & (align - 1)) == 0 &&
           align >= 2 && align <= 16;
}

static bool channels_last(const descriptor &t)
{
    const int64_t *d = t.all<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS);
    const int64_t *s = t.all<int64_t>(CUDNN_ATTR_TENSOR_STRIDES);
    return s[0] == d[1] * d[2] * d[3] && s[1] == 1 && s[2] == d[3] * d[1] && s[3] == d[1];
}

static bool good_convolution(const descriptor &c)
{
    const int64_t *pre = c.all<int64_t>(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS);
    const int64_t *post = c.all<int64_t>(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS);
    const int64_t *step = c.all<int64_t>(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES);
    const int64_t *far = c.all<int64_t>(CUDNN_ATTR_CONVOLUTION_DILATIONS);
    return c.one<int64_t>(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS) == 2 &&
           c.one<cudnnDataType_t>(CUDNN_ATTR_CONVOLUTION_COMP_TYPE) == CUDNN_DATA_FLOAT &&
           c.one<cudnnConvolutionMode_t>(CUDNN_ATTR_CONVOLUTION_CONV_MODE) ==
               CUDNN_CROSS_CORRELATION &&
           pre[0] == pre[1] && pre[0] == post[0] && pre[0] == post[1] && pre[0] >= 0 &&
           step[0] == step[1] && step[0] > 0 && far[0] == 1 && far[1] == 1;
}

static bool good_operation(const descriptor &d)
{
    operation o = operation_of(d);
    std::set<int64_t> uids;
    for (const descriptor *t : o.tensors)
        if (channels_last(*t))
            uids.insert(t->one<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID));
    return uids.size() == 3 && o.is.fits() &&
           (o.beta == 0 || (o.beta == 1 && o.is.which == 2));
}

/* ---- attention: the operations one after the other, whole matrices in float ---- */

struct matrix {
    int64_t dims[4];
    std::vector<float> v;
    float at(int64_t n, int64_t h, int64_t i, int64_t j) const
    {
        auto one = [](int64_t k, int64_t d) { return d == 1 ? 0 : k; };
        return v[size_t(
            ((one(n, dims[0]) * dims[1] + one(h, dims[1])) * dims[2] + one(i, dims[2])) *
                dims[3] +
            one(j, dims[3]))];
    }
};

static bool is_attention(const descriptor &graph)
{
    return graph.has.at(CUDNN_ATTR_OPERATIONGRAPH_OPS).count > 1;
}

static bool says(const descriptor &tensor, cudnnBackendAttributeName_t name)
{
    return tensor.has.count(name) && tensor.one<bool>(name);
}

/* The parts of an operation: inputs, and at last the output. */
static std::vector<const descriptor *> tensors_of(const descriptor &op)
{
    std::vector<const descriptor *> all;
    for (auto name :
         {CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
          CUDNN_ATTR_OPERATION_POINTWISE_TDESC, CUDNN_ATTR_OPERATION_POINTWISE_YDESC,
          CUDNN_ATTR_OPERATION_MATMUL_ADESC, CUDNN_ATTR_OPERATION_MATMUL_BDESC,
          CUDNN_ATTR_OPERATION_MATMUL_CDESC, CUDNN_ATTR_OPERATION_REDUCTION_XDESC,
          CUDNN_ATTR_OPERATION_REDUCTION_YDESC, CUDNN_ATTR_OPERATION_RESHAPE_XDESC,
          CUDNN_ATTR_OPERATION_RESHAPE_YDESC})
        if (op.has.count(name))
            all.push_back(&op.part(name));
    return all;
}

/* Heads of a multiple of 8 numbers, in 16 bits. */
static bool good_attention(const descriptor &graph)
{
    const descriptor &last = **graph.all<descriptor *>(CUDNN_ATTR_OPERATIONGRAPH_OPS);
    const descriptor &x = *tensors_of(last)[0];
    const int64_t *d = x.all<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS);
    return d[3] % 8 == 0 && d[3] <= 128 &&
           x.one<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE) != CUDNN_DATA_FLOAT;
}

template <typename each> static void elements(const descriptor &t, each f)
{
    const int64_t *d = t.all<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS);
    const int64_t *s = t.all<int64_t>(CUDNN_ATTR_TENSOR_STRIDES);
    size_t k = 0;
    for (int64_t n = 0; n < d[0]; n++)
        for (int64_t h = 0; h < d[1]; h++)
            for (int64_t i = 0; i < d[2]; i++)
                for (int64_t j = 0; j < d[3]; j++)
                    f(k++, size_t(n * s[0] + h * s[1] + i * s[2] + j * s[3]), n, h, i, j);
}

struct interpreter {
    std::map<int64_t, void *> places;
    std::map<int64_t, matrix> values;

    static size_t bytes(const descriptor &t)
    {
        return t.one<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE) == CUDNN_DATA_FLOAT
                   ? 4
                   : 2;
    }
    static cudaDataType_t type(const descriptor &t)
    {
        auto is = t.one<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE);
        return is == CUDNN_DATA_HALF       ? CUDA_R_16F
               : is == CUDNN_DATA_BFLOAT16 ? CUDA_R_16BF
                                           : CUDA_R_32F;
    }
    static matrix empty(const descriptor &t)
    {
        matrix m;
        const int64_t *d = t.all<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS);
        std::copy(d, d + 4, m.dims);
        m.v.resize(size_t(d[0] * d[1] * d[2] * d[3]));
        return m;
    }
    const matrix &get(const descriptor &t)
    {
        int64_t uid = t.one<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID);
        if (!values.count(uid)) {
            matrix m = empty(t);
            elements(t, [&](size_t k, size_t at, auto...) {
                emu_load(static_cast<char *>(places.at(uid)) + at * bytes(t), type(t), 1,
                         &m.v[k]);
            });
            values[uid] = m;
        }
        return values.at(uid);
    }
    void put(const descriptor &t, matrix m)
    {
        int64_t uid = t.one<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID);
        char narrow[4];
        elements(t, [&](size_t k, size_t at, auto...) {
            char *to = says(t, CUDNN_ATTR_TENSOR_IS_VIRTUAL)
                           ? narrow
                           : static_cast<char *>(places.at(uid)) + at * bytes(t);
            emu_store(&m.v[k], type(t), 1, to, 0);
            emu_load(to, type(t), 1, &m.v[k]);
        });
        values[uid] = m;
    }
    void pointwise(const descriptor &op, const std::vector<const descriptor *> &t)
    {
        const descriptor &how = op.part(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
        auto mode = how.one<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE);
        matrix y = empty(*t.back()), none{{1, 1, 1, 1}, {0}};
        const matrix &a = get(*t[0]), &b = t.size() > 2 ? get(*t[1]) : none;
        const matrix &c = t.size() > 3 ? get(*t[2]) : none;
        elements(*t.back(), [&](size_t k, size_t, auto n, auto h, auto i, auto j) {
            int64_t index[] = {n, h, i, j};
            float x = a.at(n, h, i, j), z = b.at(n, h, i, j);
            y.v[k] = mode == CUDNN_POINTWISE_GEN_INDEX
                         ? float(index[how.one<int64_t>(CUDNN_ATTR_POINTWISE_AXIS)])
                     : mode == CUDNN_POINTWISE_MUL           ? x * z
                     : mode == CUDNN_POINTWISE_SUB           ? x - z
                     : mode == CUDNN_POINTWISE_ADD           ? x + z
                     : mode == CUDNN_POINTWISE_DIV           ? x / z
                     : mode == CUDNN_POINTWISE_EXP           ? expf(x)
                     : mode == CUDNN_POINTWISE_LOG           ? logf(x)
                     : mode == CUDNN_POINTWISE_CMP_GE        ? float(x >= z)
                     : mode == CUDNN_POINTWISE_BINARY_SELECT ? (c.at(n, h, i, j) ? x : z)
                                                             : x;
        });
        put(*t.back(), y);
    }
    void multiply(const std::vector<const descriptor *> &t)
    {
        const matrix &a = get(*t[0]), &b = get(*t[1]);
        matrix y = empty(*t[2]);
        elements(*t[2], [&](size_t k, size_t, auto n, auto h, auto i, auto j) {
            for (int64_t l = 0; l < a.dims[3]; l++)
                y.v[k] += a.at(n, h, i, l) * b.at(n, h * b.dims[1] / y.dims[1], l, j);
        });
        put(*t[2], y);
    }
    void reduce(const descriptor &op, const std::vector<const descriptor *> &t)
    {
        bool most = op.part(CUDNN_ATTR_OPERATION_REDUCTION_DESC)
                        .one<cudnnReduceTensorOp_t>(CUDNN_ATTR_REDUCTION_OPERATOR) ==
                    CUDNN_REDUCE_TENSOR_MAX;
        const matrix &x = get(*t[0]);
        matrix y = empty(*t[1]);
        if (most)
            std::fill(y.v.begin(), y.v.end(), -3e38f);
        elements(*t[0], [&](size_t k, size_t, auto n, auto h, auto i, auto j) {
            size_t head = size_t(n * y.dims[1] + h * y.dims[1] / x.dims[1]);
            float &to = y.v[(head * size_t(y.dims[2]) + size_t(i)) * size_t(y.dims[3]) +
                            size_t(y.dims[3] == 1 ? 0 : j)];
            to = most ? std::max(to, x.v[k]) : to + x.v[k];
        });
        put(*t[1], y);
    }
    /* The same places by other dimensions. */
    void reshape(const std::vector<const descriptor *> &t)
    {
        const matrix &x = get(*t[0]);
        matrix y = empty(*t[1]);
        std::map<size_t, float> at;
        elements(*t[0], [&](size_t k, size_t place, auto...) { at[place] = x.v[k]; });
        elements(*t[1], [&](size_t k, size_t place, auto...) { y.v[k] = at.at(place); });
        put(*t[1], y);
    }
    void run(const descriptor &op)
    {
        auto t = tensors_of(op);
        if (op.type == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)
            pointwise(op, t);
        else if (op.type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)
            multiply(t);
        else if (op.type == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR)
            reduce(op, t);
        else
            reshape(t);
    }
};

static cudnnStatus_t attend(cudnnHandle_t h, const descriptor &graph,
                            const descriptor &pack, int engine, double ms)
{
    int64_t n = graph.has.at(CUDNN_ATTR_OPERATIONGRAPH_OPS).count;
    descriptor *const *ops = graph.all<descriptor *>(CUDNN_ATTR_OPERATIONGRAPH_OPS);
    const int64_t *uids = pack.all<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    void *const *at = pack.all<void *>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    const int64_t *d = tensors_of(*ops[0])[0]->all<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS);
    interpreter with;
    for (int64_t i = 0; i < pack.has.at(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS).count; i++)
        with.places[uids[i]] = at[i];
    for (int64_t i = 0; i < n; i++)
        for (const descriptor *t : tensors_of(*ops[i])) {
            int64_t uid = t->one<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID);
            int64_t align = t->one<int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
            if (says(*t, CUDNN_ATTR_TENSOR_IS_VIRTUAL))
                continue;
            if (!with.places.count(uid) ||
                reinterpret_cast<uintptr_t>(with.places[uid]) % size_t(align) != 0)
                return CUDNN_STATUS_BAD_PARAM;
            if (says(*t, CUDNN_ATTR_TENSOR_IS_BY_VALUE)) /* now, not when it is run */
                with.get(*t);
        }
    if (h->device != emu_device() ||
        !emu_may_ask(h->stream,
                     {3, engine, int(n), int(d[0]), int(d[1]), int(d[2]), int(d[3])}))
        return CUDNN_STATUS_EXECUTION_FAILED;
    emu_put(h->stream, [=] {
        interpreter now = with;
        for (int64_t i = 0; i < n; i++)
            now.run(*ops[i]);
        emu_takes(ms);
        return true;
    });
    return CUDNN_STATUS_SUCCESS;
}

/* ---- engines ---- */

struct engine {
    double takes; /* of what the usual one does */
    float answers = 1;
    std::vector<cudnnBackendNumericalNote_t> notes;
    std::vector<int> knobs;
    int64_t workspace = 1 << 20;
    bool builds = true, can_be_recorded = true;
};

enum { USUAL, VARYING, BEST = 3, TENSOR_CORES, FASTER = 9 };
static const engine engines[] = {
    {1},
    {0.1, 1, {CUDNN_NUMERICAL_NOTE_WINOGRAD, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC}},
    {0.1, 1, {}, {}, 0, false}, /* what it is too late to say */
    {0.4,
     1.000001f, /* right, but for the last bits */
     {CUDNN_NUMERICAL_NOTE_FFT},
     {CUDNN_KNOB_TYPE_SPLIT_K_SLC, CUDNN_KNOB_TYPE_KERNEL_CFG}},
    {0.3, 1.0003f, {CUDNN_NUMERICAL_NOTE_TENSOR_CORE}}, /* as TF32 would be */
    {0.1, 1, {}, {}, 0, true, false},
    {0.1, 1, {}, {}, int64_t(1) << 40},
    {0.1, 1, {CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS}},
    {0.1, 1, {CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION}},
    {0.6},
};
static const int64_t ENGINES = sizeof engines / sizeof *engines;

/* What each way of guessing says. */
struct config {
    int64_t engine;
    std::vector<int64_t> knobs;
};

static std::vector<config> guess(const descriptor &graph, cudnnBackendHeurMode_t mode)
{
    if (is_attention(graph))
        return mode != CUDNN_HEUR_MODE_A || !good_attention(graph)
                   ? std::vector<config>{}
                   : std::vector<config>{{2}, {USUAL}, {FASTER}};
    if (mode != CUDNN_HEUR_MODE_A)
        return {{2}, {5}, {6}};
    std::vector<config> list = {
        {VARYING},      {USUAL}, {BEST, {2, 1}}, {BEST, {2, 0}}, {FASTER},
        {TENSOR_CORES}, {8}};
    /* many that may not be taken come before the best */
    list.insert(list.begin() + 2, 24, {7});
    return list;
}

static bool told(const char *what)
{
    const char *text = getenv("EMU_CUDNN");
    return text && strcmp(text, what) == 0;
}

static const descriptor &graph_of(const descriptor &engine)
{
    return engine.part(CUDNN_ATTR_ENGINE_OPERATION_GRAPH);
}

static bool good_engine(const descriptor &e)
{
    int64_t i = e.one<int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
    return i >= 0 && i < ENGINES;
}

static const engine &engine_of(const descriptor &config)
{
    return engines[config.part(CUDNN_ATTR_ENGINECFG_ENGINE)
                       .one<int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX)];
}

/* Each knob that the engine has, in any order. */
static bool good_config(const descriptor &c)
{
    std::set<int> set;
    auto found = c.has.find(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES);
    for (int64_t i = 0; found != c.has.end() && i < found->second.count; i++)
        set.insert(c.all<descriptor *>(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES)[i]->one<int>(
            CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE));
    const std::vector<int> &knobs = engine_of(c).knobs;
    return set == std::set<int>(knobs.begin(), knobs.end());
}

static double takes(const descriptor &config)
{
    const engine &e = engine_of(config);
    if (is_attention(graph_of(config.part(CUDNN_ATTR_ENGINECFG_ENGINE))))
        return e.takes;
    operation o = operation_of(graph_of(config.part(CUDNN_ATTR_ENGINECFG_ENGINE))
                                   .part(CUDNN_ATTR_OPERATIONGRAPH_OPS));
    double longer = o.is.which == 1 && e.notes.size() && e.builds ? 4 : 1;
    if (!e.knobs.empty() &&
        config.all<descriptor *>(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES)[1]->one<int64_t>(
            CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE) == 0)
        longer *= 1.2;
    return e.takes * longer;
}

/* ---- the interface ---- */

extern "C" cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                                      cudnnBackendDescriptor_t *d)
{
    descriptor *made = new descriptor;
    made->type = type;
    *d = made;
    return CUDNN_STATUS_SUCCESS;
}

extern "C" cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t d)
{
    delete of(d);
    return CUDNN_STATUS_SUCCESS;
}

static bool good_part(const descriptor *part, int wanted)
{
    bool operation =
        (part->type >= CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR &&
         part->type <= CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR) ||
        part->type == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR ||
        part->type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR ||
        part->type == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR ||
        part->type == CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR;
    return part->final &&
           (wanted == ANY_OPERATION ? operation : int(part->type) == wanted);
}

extern "C" cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t d,
                                                  cudnnBackendAttributeName_t name,
                                                  cudnnBackendAttributeType_t type,
                                                  int64_t count, const void *values)
{
    const rule *r = rule_of(of(d), name);
    if (of(d)->final)
        return CUDNN_STATUS_NOT_INITIALIZED;
    if (!r || r->type != type || count < r->from || count < 1 || count > r->to)
        return CUDNN_STATUS_BAD_PARAM;
    for (int64_t i = 0; i < count && type == CUDNN_TYPE_BACKEND_DESCRIPTOR; i++)
        if (!good_part(static_cast<descriptor *const *>(values)[i], r->part))
            return CUDNN_STATUS_BAD_PARAM;
    const char *from = static_cast<const char *>(values);
    of(d)->has[name] = {type, count, {from, from + size_t(count) * size_of(type)}};
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t check(const descriptor &d)
{
    bool good = true;
    switch (int(d.type)) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR:
        good = good_tensor(d);
        break;
    case CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR:
        good = good_convolution(d);
        break;
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
        good = d.one<cudnnHandle_t>(CUDNN_ATTR_OPERATIONGRAPH_HANDLE)->device ==
               emu_device();
        break;
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
        good = !emu_recording();
        break;
    case CUDNN_BACKEND_ENGINE_DESCRIPTOR:
        return good_engine(d) ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED;
    case CUDNN_BACKEND_ENGINECFG_DESCRIPTOR:
        good = good_config(d);
        break;
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
        if (!engine_of(d.part(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)).builds)
            return CUDNN_STATUS_NOT_SUPPORTED;
        good = !emu_recording() &&
               d.one<cudnnHandle_t>(CUDNN_ATTR_EXECUTION_PLAN_HANDLE)->device ==
                   emu_device();
        break;
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
        good = good_operation(d);
        break;
    }
    return good ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}

extern "C" cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t d)
{
    for (const rule &r : rules)
        if (r.owner == of(d)->type && r.from > 0 && !of(d)->has.count(r.name))
            return CUDNN_STATUS_BAD_PARAM;
    if (of(d)->final)
        return CUDNN_STATUS_BAD_PARAM;
    cudnnStatus_t rc = check(*of(d));
    of(d)->final = rc == CUDNN_STATUS_SUCCESS;
    return rc;
}

/* What is asked for goes into descriptors that the caller has made. */
static bool fill(void *values, int64_t i, const descriptor &with)
{
    descriptor *into = static_cast<descriptor **>(values)[i];
    bool good = into->type == with.type && !into->final;
    *into = with;
    return good;
}

static descriptor
finished(cudnnBackendDescriptorType_t type,
         const std::vector<std::pair<cudnnBackendAttributeName_t, value>> &with)
{
    descriptor d;
    d.type = type;
    d.final = true;
    for (auto &entry : with)
        d.has.insert(entry);
    return d;
}

template <typename T> static value value_of(cudnnBackendAttributeType_t type, T v)
{
    const char *from = reinterpret_cast<const char *>(&v);
    return {type, 1, {from, from + sizeof v}};
}

/* Parts of the answers below, which stay. */
static std::vector<std::unique_ptr<descriptor>> kept;

static descriptor *keep(const descriptor &d)
{
    kept.push_back(std::make_unique<descriptor>(d));
    return kept.back().get();
}

static descriptor config_of(const descriptor &graph, const config &c)
{
    const engine &e = engines[c.engine];
    descriptor *at = const_cast<descriptor *>(&graph);
    descriptor *is = keep(finished(
        CUDNN_BACKEND_ENGINE_DESCRIPTOR,
        {{CUDNN_ATTR_ENGINE_OPERATION_GRAPH, value_of(CUDNN_TYPE_BACKEND_DESCRIPTOR, at)},
         {CUDNN_ATTR_ENGINE_GLOBAL_INDEX, value_of(CUDNN_TYPE_INT64, c.engine)}}));
    descriptor made = finished(
        CUDNN_BACKEND_ENGINECFG_DESCRIPTOR,
        {{CUDNN_ATTR_ENGINECFG_ENGINE, value_of(CUDNN_TYPE_BACKEND_DESCRIPTOR, is)}});
    value knobs{CUDNN_TYPE_BACKEND_DESCRIPTOR, int64_t(e.knobs.size()), {}};
    for (size_t i = 0; i < e.knobs.size(); i++) {
        descriptor *knob = keep(finished(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR,
                                         {{CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE,
                                           value_of(CUDNN_TYPE_KNOB_TYPE, e.knobs[i])},
                                          {CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE,
                                           value_of(CUDNN_TYPE_INT64, c.knobs[i])}}));
        const char *from = reinterpret_cast<const char *>(&knob);
        knobs.bytes.insert(knobs.bytes.end(), from, from + sizeof knob);
    }
    made.has[CUDNN_ATTR_ENGINECFG_KNOB_CHOICES] = knobs;
    return made;
}

static cudnnStatus_t get_results(const descriptor &d, int64_t room, int64_t *count,
                                 void *values)
{
    std::vector<config> all =
        guess(d.part(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH),
              d.one<cudnnBackendHeurMode_t>(CUDNN_ATTR_ENGINEHEUR_MODE));
    bool good = true;
    *count = int64_t(all.size());
    for (int64_t i = 0; i < room && i < *count; i++)
        good = fill(values, i,
                    config_of(d.part(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH),
                              all[size_t(i)])) &&
               good;
    return good ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}

static cudnnStatus_t get_notes(const descriptor &d, int64_t room, int64_t *count,
                               void *values)
{
    auto notes = engines[d.one<int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX)].notes;
    if (told("loose"))
        notes.push_back(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC);
    *count = int64_t(notes.size());
    for (int64_t i = 0; i < room && i < *count; i++)
        static_cast<cudnnBackendNumericalNote_t *>(values)[i] = notes[size_t(i)];
    return CUDNN_STATUS_SUCCESS;
}

extern "C" cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const d,
                                                  cudnnBackendAttributeName_t name,
                                                  cudnnBackendAttributeType_t type,
                                                  int64_t room, int64_t *count,
                                                  void *values)
{
    const descriptor &from = *of(d);
    if (!from.final)
        return CUDNN_STATUS_NOT_INITIALIZED;
    if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS && type == CUDNN_TYPE_BACKEND_DESCRIPTOR &&
        from.type == CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)
        return get_results(from, room, count, values);
    if (name == CUDNN_ATTR_ENGINE_NUMERICAL_NOTE && type == CUDNN_TYPE_NUMERICAL_NOTE &&
        from.type == CUDNN_BACKEND_ENGINE_DESCRIPTOR)
        return get_notes(from, room, count, values);
    if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE && type == CUDNN_TYPE_INT64 &&
        from.type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR && room == 1) {
        *count = 1;
        *static_cast<int64_t *>(values) =
            told("large")
                ? int64_t(40) << 20
                : engine_of(from.part(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)).workspace;
        return CUDNN_STATUS_SUCCESS;
    }
    auto found = from.has.find(name);
    if (found == from.has.end() || found->second.type != type)
        return CUDNN_STATUS_BAD_PARAM;
    const value &v = found->second;
    bool good = true;
    *count = v.count;
    for (int64_t i = 0; i < room && i < v.count; i++) {
        if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR)
            good = fill(values, i, *from.all<descriptor *>(name)[i]) && good;
        else
            memcpy(static_cast<char *>(values) + size_t(i) * size_of(type),
                   v.bytes.data() + size_t(i) * size_of(type), size_of(type));
    }
    return good ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}

/* Where the pack has each of the operation's tensors, if it lies as it was promised. */
static bool find_places(const operation &o, const descriptor &pack, void *places[3])
{
    const int64_t *uids = pack.all<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    void *const *at = pack.all<void *>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    for (int t = 0; t < 3; t++) {
        int64_t uid = o.tensors[t]->one<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID);
        int64_t align = o.tensors[t]->one<int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
        places[t] = nullptr;
        for (int i = 0; i < 3; i++)
            if (uids[i] == uid)
                places[t] = at[i];
        if (!places[t] || reinterpret_cast<uintptr_t>(places[t]) % size_t(align) != 0)
            return false;
    }
    return true;
}

extern "C" cudnnStatus_t cudnnBackendExecute(cudnnHandle_t h,
                                             cudnnBackendDescriptor_t plan,
                                             cudnnBackendDescriptor_t pack)
{
    const descriptor &p = *of(plan), &v = *of(pack);
    void *at[3];
    if (p.type != CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR || !p.final ||
        v.type != CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR || !v.final ||
        p.one<cudnnHandle_t>(CUDNN_ATTR_EXECUTION_PLAN_HANDLE) != h)
        return CUDNN_STATUS_BAD_PARAM;
    const descriptor &config = p.part(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
    const engine &e = engine_of(config);
    const descriptor &graph = graph_of(config.part(CUDNN_ATTR_ENGINECFG_ENGINE));
    if (is_attention(graph))
        return attend(h, graph, v, 1 + int(&e - engines), takes(config) * EMU_USUAL_MS);
    operation o = operation_of(graph.part(CUDNN_ATTR_OPERATIONGRAPH_OPS));
    if (!find_places(o, v, at) ||
        (e.workspace > 0 && !v.one<void *>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE)))
        return CUDNN_STATUS_BAD_PARAM;
    if ((told("refused") && &e <= &engines[VARYING]) ||
        (told("choosy") && &e >= &engines[TENSOR_CORES]))
        return CUDNN_STATUS_NOT_SUPPORTED;
    if (!o.is.may_ask(h, 1 + int(&e - engines)) ||
        (emu_recording() && !e.can_be_recorded))
        return CUDNN_STATUS_EXECUTION_FAILED;
    /* half the numbers have the precision anyway */
    float by = o.is.x.type == CUDNN_DATA_FLOAT ? e.answers : 1;
    double ms = takes(config) * EMU_USUAL_MS;
    emu_put(h->stream, [=] {
        o.is.compute(at[0], at[1], at[2], o.beta, by);
        emu_takes(ms);
        return true;
    });
    return CUDNN_STATUS_SUCCESS;
}
