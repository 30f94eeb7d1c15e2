/* tests/worker/cuda/emu_cudnn_descriptor.cc - see emu_cudnn_descriptor.h */
#include "tests/worker/cuda/emu_cudnn_descriptor.h"

#include <set>

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

#define ROW(owner, name, type, from, to, part)                                          \
    {                                                                                   \
        CUDNN_BACKEND_##owner##_DESCRIPTOR, CUDNN_ATTR_##name, CUDNN_TYPE_##type, from, \
            to, part                                                                    \
    }
#define RANGE(owner, name, type, from, to) ROW(owner, name, type, from, to, NO_PART)
#define VALUES(owner, name, type, n)       RANGE(owner, name, type, n, n)
#define PLACES(owner, name, type)          RANGE(owner, name, type, 3, 14)
#define MAYBE(owner, name, type)           RANGE(owner, name, type, 0, 1)
#define PARTS(owner, name, from, to, part) \
    ROW(owner, name, BACKEND_DESCRIPTOR, from, to, part)
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

size_t size_of(cudnnBackendAttributeType_t type)
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

cudnnStatus_t descriptor_set(descriptor &d, cudnnBackendAttributeName_t name,
                             cudnnBackendAttributeType_t type, int64_t count,
                             const void *values)
{
    const rule *r = rule_of(&d, name);
    if (d.final)
        return CUDNN_STATUS_NOT_INITIALIZED;
    if (!r || r->type != type || count < r->from || count < 1 || count > r->to)
        return CUDNN_STATUS_BAD_PARAM;
    for (int64_t i = 0; i < count && type == CUDNN_TYPE_BACKEND_DESCRIPTOR; i++)
        if (!good_part(static_cast<descriptor *const *>(values)[i], r->part))
            return CUDNN_STATUS_BAD_PARAM;
    const char *from = static_cast<const char *>(values);
    d.has[name] = {type, count, {from, from + size_t(count) * size_of(type)}};
    return CUDNN_STATUS_SUCCESS;
}

bool descriptor_complete(const descriptor &d)
{
    for (const rule &r : rules)
        if (r.owner == d.type && r.from > 0 && !d.has.count(r.name))
            return false;
    return true;
}

/* ---- operations ---- */

static emu_tensor tensor_of(const descriptor &t)
{
    const int64_t *d = t.all<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS);
    return {t.one<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE), int(d[0]), int(d[1]),
            int(d[2]), int(d[3])};
}

operation operation_of(const descriptor &o)
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

bool descriptor_fits(const descriptor &d)
{
    switch (int(d.type)) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR:
        return good_tensor(d);
    case CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR:
        return good_convolution(d);
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
        return good_operation(d);
    default:
        return true;
    }
}
