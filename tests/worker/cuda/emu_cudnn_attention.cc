/* tests/worker/cuda/emu_cudnn_attention.cc - see emu_cudnn_descriptor.h: a graph's
 * operations one after the other, whole matrices in float
 */
#include "tests/worker/cuda/emu_cudnn_descriptor.h"

#include "tests/worker/cuda/emu_types.h"

#include <algorithm>
#include <cmath>

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

bool is_attention(const descriptor &graph)
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
bool good_attention(const descriptor &graph)
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

cudnnStatus_t attend(cudnnHandle_t h, const descriptor &graph, const descriptor &pack,
                     int engine, double ms)
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
