/* tests/worker/cuda/emu_cublaslt.cc - see emu.h: matrix products, column-major */
#include "tests/worker/cuda/emu.h"

#include "tests/worker/cuda/emu_types.h"

#include <cmath>
#include <cstring>
#include <cublasLt.h>

struct cublasLtContext {
    int device;
};

/* The real types are blocks of words that the caller never looks into; *Create() gives
 * out pointers to these instead. */
struct emu_op {
    cublasComputeType_t compute;
    cublasOperation_t a = CUBLAS_OP_N, b = CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    const void *bias = nullptr;
};

struct emu_layout {
    cudaDataType_t type;
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
    *h = new cublasLtContext{emu_device()};
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
cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d,
                               cublasLtMatmulDescAttributes_t what, const void *value,
                               size_t size)
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
    if ((type != CUDA_R_32F && type != CUDA_R_16BF && type != CUDA_R_16F) ||
        ld < int64_t(rows))
        return CUBLAS_STATUS_INVALID_VALUE;
    *l =
        reinterpret_cast<cublasLtMatrixLayout_t>(new emu_layout{type, rows, columns, ld});
    return CUBLAS_STATUS_SUCCESS;
}

extern "C" cublasStatus_t cublasLtMatrixLayoutDestroy(const cublasLtMatrixLayout_t l)
{
    delete layout_of(l);
    return CUBLAS_STATUS_SUCCESS;
}

/* What the caller promises of addresses; an algorithm is chosen by it. */
struct emu_wish {
    uint32_t a = 256, b = 256, c = 256, d = 256;
    uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
};

/* Of several: the usual one, one that takes half the time, one that takes longer. */
enum emu_kind { USUAL, QUICK, SLOW, KINDS };
struct emu_algo {
    uint64_t mark = EMU_ALGO;
    emu_wish wish;
    uint32_t kind = USUAL;
    static const uint64_t EMU_ALGO = 0xe31a1e0;
};
static_assert(sizeof(emu_algo) <= sizeof(cublasLtMatmulAlgo_t), "room for it");

static emu_algo algo_of(const cublasLtMatmulAlgo_t *from)
{
    emu_algo algo;
    memcpy(static_cast<void *>(&algo), from->data, sizeof algo);
    return algo;
}

static emu_wish *wish_of(cublasLtMatmulPreference_t p)
{
    return reinterpret_cast<emu_wish *>(p);
}

extern "C" cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *p)
{
    *p = reinterpret_cast<cublasLtMatmulPreference_t>(new emu_wish);
    return CUBLAS_STATUS_SUCCESS;
}

extern "C" cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{
    delete wish_of(p);
    return CUBLAS_STATUS_SUCCESS;
}

extern "C" cublasStatus_t
cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                     cublasLtMatmulPreferenceAttributes_t what,
                                     const void *value, size_t size)
{
    emu_wish *w = wish_of(p);
    uint32_t *into = what == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES   ? &w->a
                     : what == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES ? &w->b
                     : what == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES ? &w->c
                     : what == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES ? &w->d
                     : what == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK ? &w->reductions
                                                                          : nullptr;
    if (what == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES && size == sizeof(size_t))
        return CUBLAS_STATUS_SUCCESS;
    if (!into || size != sizeof *into)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(into, value, size);
    return CUBLAS_STATUS_SUCCESS;
}

/* Do the shapes fit each other, and the types? */
static bool fits(const emu_op &o, const emu_layout &a, const emu_layout &b,
                 const emu_layout &d)
{
    uint64_t m = o.a == CUBLAS_OP_T ? a.columns : a.rows;
    uint64_t k = o.a == CUBLAS_OP_T ? a.rows : a.columns;
    uint64_t n = o.b == CUBLAS_OP_T ? b.rows : b.columns;
    uint64_t also_k = o.b == CUBLAS_OP_T ? b.columns : b.rows;
    return k == also_k && d.rows == m && d.columns == n && a.type == b.type &&
           (d.type == a.type || d.type == CUDA_R_32F) &&
           (a.type == CUDA_R_32F || o.compute == CUBLAS_COMPUTE_32F);
}

extern "C" cublasStatus_t
cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t h, cublasLtMatmulDesc_t op,
                               cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                               cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                               cublasLtMatmulPreference_t p, int wanted,
                               cublasLtMatmulHeuristicResult_t *results, int *found)
{
    *found = wanted < KINDS ? wanted : int(KINDS);
    memset(static_cast<void *>(results), 0, size_t(*found) * sizeof *results);
    for (int i = 0; i < *found; i++) {
        emu_algo algo;
        algo.wish = *wish_of(p);
        algo.kind = uint32_t(i);
        memcpy(results[i].algo.data, &algo, sizeof algo);
    }
    return fits(*op_of(op), *layout_of(a), *layout_of(b), *layout_of(d))
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_INVALID_VALUE;
}

extern "C" cublasStatus_t cublasLtMatmulAlgoCheck(
    cublasLtHandle_t h, cublasLtMatmulDesc_t op, cublasLtMatrixLayout_t a,
    cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
    const cublasLtMatmulAlgo_t *algo, cublasLtMatmulHeuristicResult_t *result)
{
    emu_algo is = algo_of(algo);
    memset(static_cast<void *>(result), 0, sizeof *result);
    if (h->device != emu_device())
        return CUBLAS_STATUS_ARCH_MISMATCH;
    return is.mark == emu_algo::EMU_ALGO && is.kind < KINDS &&
                   fits(*op_of(op), *layout_of(a), *layout_of(b), *layout_of(d))
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_INVALID_VALUE;
}

extern "C" size_t cublasLtGetVersion()
{
    return CUBLAS_VERSION;
}

/* A matrix as floats; TF32 has ten bits of them. */
static std::vector<float> unpacked(const void *from, const emu_layout &l, bool tf32)
{
    std::vector<float> v(uint64_t(l.ld) * l.columns);
    emu_load(from, l.type, v.size(), v.data());
    for (float &x : v) {
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        bits = tf32 ? (bits + 0x1000) & ~0x1fffu : bits;
        memcpy(&x, &bits, sizeof bits);
    }
    return v;
}

/* C: what is added, as D lies, which it may be; nullptr: nothing. */
static void multiply(const emu_op &o, const void *A, const emu_layout &a, const void *B,
                     const emu_layout &b, const void *C, void *D, const emu_layout &d)
{
    bool ta = o.a == CUBLAS_OP_T, tb = o.b == CUBLAS_OP_T;
    bool tf32 = o.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    bool biased =
        o.epilogue == CUBLASLT_EPILOGUE_BIAS || o.epilogue == CUBLASLT_EPILOGUE_RELU_BIAS;
    std::vector<float> x = unpacked(A, a, tf32), y = unpacked(B, b, tf32);
    std::vector<float> bias(d.rows), out(d.rows), added(uint64_t(d.ld) * d.columns);
    if (C)
        emu_load(C, d.type, added.size(), added.data());
    if (biased) /* of the same type as D */
        emu_load(o.bias, d.type, d.rows, bias.data());
    uint64_t inner = ta ? a.rows : a.columns;
    for (uint64_t j = 0; j < d.columns; j++) {
        for (uint64_t i = 0; i < d.rows; i++) {
            double sum = double(bias[i]) + double(added[j * uint64_t(d.ld) + i]);
            for (uint64_t k = 0; k < inner; k++)
                sum +=
                    double(ta ? x[i * uint64_t(a.ld) + k] : x[k * uint64_t(a.ld) + i]) *
                    double(tb ? y[k * uint64_t(b.ld) + j] : y[j * uint64_t(b.ld) + k]);
            if (o.epilogue == CUBLASLT_EPILOGUE_RELU_BIAS && sum < 0)
                sum = 0;
            out[i] = float(sum);
        }
        emu_store(out.data(), d.type, d.rows, D, j * uint64_t(d.ld));
    }
}

static bool lies(const void *p, uint32_t alignment)
{
    return reinterpret_cast<uintptr_t>(p) % alignment == 0;
}

extern "C" cublasStatus_t cublasLtMatmul(
    cublasLtHandle_t h, cublasLtMatmulDesc_t op, const void *alpha, const void *A,
    cublasLtMatrixLayout_t a, const void *B, cublasLtMatrixLayout_t b, const void *beta,
    const void *C, cublasLtMatrixLayout_t c, void *D, cublasLtMatrixLayout_t d,
    const cublasLtMatmulAlgo_t *algo, void *workspace, size_t size, cudaStream_t stream)
{
    emu_op o = *op_of(op);
    emu_layout la = *layout_of(a), lb = *layout_of(b), ld = *layout_of(d);
    emu_algo chosen = algo_of(algo);
    emu_wish promised = chosen.wish;
    emu_layout lc = *layout_of(c);
    float by = *static_cast<const float *>(beta);
    if (*static_cast<const float *>(alpha) != 1 || (by != 0 && by != 1) ||
        lc.type != ld.type || lc.rows != ld.rows || lc.columns != ld.columns ||
        lc.ld != ld.ld || !fits(o, la, lb, ld) || !lies(A, promised.a) ||
        !lies(B, promised.b) || !lies(C, promised.c) || !lies(D, promised.d) ||
        (o.bias && !lies(o.bias, promised.d)))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (h->device != emu_device() || h->device != emu_device_of(stream))
        return CUBLAS_STATUS_EXECUTION_FAILED;
    if (!emu_may_ask(stream,
                     {3, o.compute, o.a, o.b, o.epilogue, la.type, int64_t(la.rows),
                      int64_t(la.columns), lb.type, int64_t(lb.rows), int64_t(lb.columns),
                      ld.type, int64_t(chosen.kind)}))
        return CUBLAS_STATUS_EXECUTION_FAILED;
    emu_put(stream, [=] {
        static const double takes[] = {1, 0.5, 2};
        multiply(o, A, la, B, lb, by == 0 ? nullptr : C, D, ld);
        emu_takes(takes[chosen.kind] * EMU_USUAL_MS);
        return true;
    });
    return CUBLAS_STATUS_SUCCESS;
}
