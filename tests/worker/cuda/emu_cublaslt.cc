/* tests/worker/cuda/emu_cublaslt.cc - see emu.h: matrix products, column-major */
#include "tests/worker/cuda/emu.h"

#include <cublasLt.h>
#include <cstring>

struct cublasLtContext {
    int unused;
};

/* The real types are blocks of words that the caller never looks into; *Create() gives
 * out pointers to these instead. */
struct emu_op {
    cublasComputeType_t compute;
    cublasOperation_t a = CUBLAS_OP_N, b = CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    const float *bias = nullptr;
};

struct emu_layout {
    uint64_t rows, columns;
    int64_t ld;
};

static emu_op *op_of(cublasLtMatmulDesc_t d)
{
    return reinterpret_cast<emu_op *>(d);
}

static emu_layout *layout_of(cublasLtMatrixLayout_t l)
{
    return reinterpret_cast<emu_layout *>(l);
}

extern "C" cublasStatus_t cublasLtCreate(cublasLtHandle_t *h)
{
    *h = new cublasLtContext;
    return CUBLAS_STATUS_SUCCESS;
}

extern "C" cublasStatus_t cublasLtDestroy(cublasLtHandle_t h)
{
    delete h;
    return CUBLAS_STATUS_SUCCESS;
}

extern "C" const char *cublasLtGetStatusString(cublasStatus_t rc)
{
    return rc == CUBLAS_STATUS_INVALID_VALUE ? "CUBLAS_STATUS_INVALID_VALUE" : "an error";
}

extern "C" cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *d,
                                                   cublasComputeType_t compute,
                                                   cudaDataType_t scale)
{
    emu_op *o = new emu_op;
    o->compute = compute;
    *d = reinterpret_cast<cublasLtMatmulDesc_t>(o);
    return scale == CUDA_R_32F ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

extern "C" cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d)
{
    delete op_of(d);
    return CUBLAS_STATUS_SUCCESS;
}

extern "C" cublasStatus_t
cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t what,
                               const void *value, size_t size)
{
    emu_op *o = op_of(d);
    struct {
        cublasLtMatmulDescAttributes_t what;
        void *into;
        size_t size;
    } known[] = {{CUBLASLT_MATMUL_DESC_TRANSA, &o->a, sizeof o->a},
                 {CUBLASLT_MATMUL_DESC_TRANSB, &o->b, sizeof o->b},
                 {CUBLASLT_MATMUL_DESC_EPILOGUE, &o->epilogue, sizeof o->epilogue},
                 {CUBLASLT_MATMUL_DESC_BIAS_POINTER, &o->bias, sizeof o->bias}};
    for (auto &k : known) {
        if (k.what == what && k.size == size) {
            memcpy(k.into, value, size);
            return CUBLAS_STATUS_SUCCESS;
        }
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

extern "C" cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *l,
                                                     cudaDataType type, uint64_t rows,
                                                     uint64_t columns, int64_t ld)
{
    if (type != CUDA_R_32F || ld < int64_t(rows))
        return CUBLAS_STATUS_INVALID_VALUE;
    *l = reinterpret_cast<cublasLtMatrixLayout_t>(new emu_layout{rows, columns, ld});
    return CUBLAS_STATUS_SUCCESS;
}

extern "C" cublasStatus_t cublasLtMatrixLayoutDestroy(const cublasLtMatrixLayout_t l)
{
    delete layout_of(l);
    return CUBLAS_STATUS_SUCCESS;
}

extern "C" cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *p)
{
    *p = reinterpret_cast<cublasLtMatmulPreference_t>(new int);
    return CUBLAS_STATUS_SUCCESS;
}

extern "C" cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{
    delete reinterpret_cast<int *>(p);
    return CUBLAS_STATUS_SUCCESS;
}

extern "C" cublasStatus_t
cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                     cublasLtMatmulPreferenceAttributes_t what,
                                     const void *value, size_t size)
{
    return what == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES && size == sizeof(size_t)
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_INVALID_VALUE;
}

/* Do the shapes fit each other? */
static bool fits(const emu_op &o, const emu_layout &a, const emu_layout &b,
                 const emu_layout &d)
{
    uint64_t m = o.a == CUBLAS_OP_T ? a.columns : a.rows;
    uint64_t k = o.a == CUBLAS_OP_T ? a.rows : a.columns;
    uint64_t n = o.b == CUBLAS_OP_T ? b.rows : b.columns;
    uint64_t also_k = o.b == CUBLAS_OP_T ? b.columns : b.rows;
    return k == also_k && d.rows == m && d.columns == n;
}

extern "C" cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t h, cublasLtMatmulDesc_t op, cublasLtMatrixLayout_t a,
    cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
    cublasLtMatmulPreference_t p, int wanted, cublasLtMatmulHeuristicResult_t *results,
    int *found)
{
    memset(results, 0, sizeof *results);
    *found = 1;
    return fits(*op_of(op), *layout_of(a), *layout_of(b), *layout_of(d))
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_INVALID_VALUE;
}

static void multiply(const emu_op &o, const float *A, const emu_layout &a, const float *B,
                     const emu_layout &b, float *D, const emu_layout &d)
{
    bool ta = o.a == CUBLAS_OP_T, tb = o.b == CUBLAS_OP_T;
    bool biased = o.epilogue == CUBLASLT_EPILOGUE_BIAS ||
                  o.epilogue == CUBLASLT_EPILOGUE_RELU_BIAS;
    uint64_t inner = ta ? a.rows : a.columns;
    for (uint64_t j = 0; j < d.columns; j++) {
        for (uint64_t i = 0; i < d.rows; i++) {
            double sum = biased ? double(o.bias[i]) : 0;
            for (uint64_t k = 0; k < inner; k++) {
                float x = ta ? A[i * uint64_t(a.ld) + k] : A[k * uint64_t(a.ld) + i];
                float y = tb ? B[k * uint64_t(b.ld) + j] : B[j * uint64_t(b.ld) + k];
                sum += double(x) * double(y);
            }
            if (o.epilogue == CUBLASLT_EPILOGUE_RELU_BIAS && sum < 0)
                sum = 0;
            D[j * uint64_t(d.ld) + i] = float(sum);
        }
    }
}

extern "C" cublasStatus_t
cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t op, const void *alpha,
               const void *A, cublasLtMatrixLayout_t a, const void *B,
               cublasLtMatrixLayout_t b, const void *beta, const void *C,
               cublasLtMatrixLayout_t c, void *D, cublasLtMatrixLayout_t d,
               const cublasLtMatmulAlgo_t *algo, void *workspace, size_t size,
               cudaStream_t stream)
{
    emu_op o = *op_of(op);
    emu_layout la = *layout_of(a), lb = *layout_of(b), ld = *layout_of(d);
    if (*static_cast<const float *>(alpha) != 1 ||
        *static_cast<const float *>(beta) != 0 || !fits(o, la, lb, ld))
        return CUBLAS_STATUS_INVALID_VALUE;
    emu_put(stream, [=] {
        multiply(o, static_cast<const float *>(A), la, static_cast<const float *>(B), lb,
                 static_cast<float *>(D), ld);
        return true;
    });
    return CUBLAS_STATUS_SUCCESS;
}
