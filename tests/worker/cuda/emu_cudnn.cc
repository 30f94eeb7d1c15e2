/* tests/worker/cuda/emu_cudnn.cc - see emu.h: convolutions by cuDNN's older interface
 *
 * EMU_CUDNN=nchw: there is no algorithm for channels last; refused: what is recommended
 * first is refused; loose: nothing deterministic is recommended.
 */
#include "tests/worker/cuda/emu_cudnn.h"

#include "tests/worker/cuda/emu_types.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

static cudnnStatus_t good(bool yes)
{
    return yes ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}

static bool known(cudnnTensorFormat_t format, cudnnDataType_t type)
{
    return (format == CUDNN_TENSOR_NCHW || format == CUDNN_TENSOR_NHWC) &&
           (type == CUDNN_DATA_FLOAT || type == CUDNN_DATA_BFLOAT16 ||
            type == CUDNN_DATA_HALF);
}

extern "C" const char *cudnnGetErrorString(cudnnStatus_t rc)
{
    return rc == CUDNN_STATUS_BAD_PARAM ? "CUDNN_STATUS_BAD_PARAM" : "an error";
}

extern "C" void cudnnGetLastErrorString(char *message, size_t size)
{
    snprintf(message, size, "no more is known\nbut this");
}

extern "C" cudnnStatus_t cudnnCreate(cudnnHandle_t *h)
{
    *h = new cudnnContext{emu_device()};
    return CUDNN_STATUS_SUCCESS;
}

extern "C" cudnnStatus_t cudnnDestroy(cudnnHandle_t h)
{
    delete h;
    return CUDNN_STATUS_SUCCESS;
}

extern "C" cudnnStatus_t cudnnSetStream(cudnnHandle_t h, cudaStream_t s)
{
    h->stream = s;
    return good(h->device == emu_device_of(s));
}

extern "C" cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t *t)
{
    *t = new cudnnTensorStruct;
    return CUDNN_STATUS_SUCCESS;
}

extern "C" cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t t)
{
    delete t;
    return CUDNN_STATUS_SUCCESS;
}

extern "C" cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t t,
                                                    cudnnTensorFormat_t format,
                                                    cudnnDataType_t type, int n, int c,
                                                    int h, int w)
{
    *t = {format, type, n, c, h, w};
    return good(known(format, type) && n > 0 && c > 0 && h > 0 && w > 0);
}

extern "C" cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t *f)
{
    *f = new cudnnFilterStruct;
    return CUDNN_STATUS_SUCCESS;
}

extern "C" cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t f)
{
    delete f;
    return CUDNN_STATUS_SUCCESS;
}

extern "C" cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t f,
                                                    cudnnDataType_t type,
                                                    cudnnTensorFormat_t format, int k,
                                                    int c, int r, int s)
{
    *static_cast<cudnnTensorStruct *>(f) = {format, type, k, c, r, s};
    return good(known(format, type));
}

extern "C" cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t *c)
{
    *c = new cudnnConvolutionStruct;
    return CUDNN_STATUS_SUCCESS;
}

extern "C" cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t c)
{
    delete c;
    return CUDNN_STATUS_SUCCESS;
}

extern "C" cudnnStatus_t
cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t c, int pad_h, int pad_w,
                                int step_h, int step_w, int dilation_h, int dilation_w,
                                cudnnConvolutionMode_t mode, cudnnDataType_t compute)
{
    *c = {true, pad_h, step_h, c->math};
    return good(pad_h >= 0 && pad_h == pad_w && step_h > 0 && step_h == step_w &&
                dilation_h == 1 && dilation_w == 1 && mode == CUDNN_CROSS_CORRELATION &&
                compute == CUDNN_DATA_FLOAT);
}

extern "C" cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t c,
                                                     cudnnMathType_t math)
{
    c->math = math;
    return good(math == CUDNN_DEFAULT_MATH || math == CUDNN_FMA_MATH ||
                math == CUDNN_TENSOR_OP_MATH);
}

bool emu_convolution::widens() const
{
    return which == 1 && x.type != CUDNN_DATA_FLOAT && w.type == CUDNN_DATA_FLOAT &&
           (w.format == CUDNN_TENSOR_NCHW || w.c == 1);
}

bool emu_convolution::fits() const
{
    bool alike = x.type == w.type && x.format == w.format;
    return conv.set && x.n == y.n && x.c == w.c && y.c == w.n && (alike || widens()) &&
           x.type == y.type && x.format == y.format &&
           y.h == (x.h + 2 * conv.pad - w.h) / conv.step + 1 &&
           y.w == (x.w + 2 * conv.pad - w.w) / conv.step + 1;
}

static bool told(const char *what)
{
    const char *text = getenv("EMU_CUDNN");
    return text && strcmp(text, what) == 0;
}

/* The fastest one is not deterministic: the second must be chosen. Another good one comes
 * twice, as for two kinds of arithmetic, of which the second is TF32's where that is not
 * allowed, and the last takes too much room. They are to be played in the arithmetic that
 * comes with them. */
template <typename perf, typename algo>
static void offer(cudnnTensorFormat_t format, cudnnMathType_t asked, perf *results,
                  int *n, algo loose, algo strict, algo other, algo large)
{
    if (format == CUDNN_TENSOR_NHWC && told("nchw")) {
        *n = 0;
        return;
    }
    const algo all[] = {loose, strict, other, other, large};
    *n = 5;
    memset(results, 0, size_t(*n) * sizeof *results);
    for (int i = 0; i < *n; i++) {
        results[i].algo = all[i];
        results[i].determinism =
            i == 0 || told("loose") ? CUDNN_NON_DETERMINISTIC : CUDNN_DETERMINISTIC;
        results[i].mathType =
            asked == CUDNN_TENSOR_OP_MATH || i == 3 ? CUDNN_DEFAULT_MATH : asked;
        results[i].memory = i == 4 ? size_t(1) << 40 : 1 << 20;
    }
}

extern "C" cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(
    cudnnHandle_t h, const cudnnTensorDescriptor_t x, const cudnnFilterDescriptor_t w,
    const cudnnConvolutionDescriptor_t c, const cudnnTensorDescriptor_t y, int wanted,
    int *n, cudnnConvolutionFwdAlgoPerf_t *results)
{
    offer(x->format, c->math, results, n, CUDNN_CONVOLUTION_FWD_ALGO_GEMM,
          CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM,
          CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD, CUDNN_CONVOLUTION_FWD_ALGO_FFT);
    return good(emu_convolution{0, *x, *y, *w, *c}.fits() && wanted >= 5);
}

extern "C" cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(
    cudnnHandle_t h, const cudnnTensorDescriptor_t x, const cudnnTensorDescriptor_t dy,
    const cudnnConvolutionDescriptor_t c, const cudnnFilterDescriptor_t dw, int wanted,
    int *n, cudnnConvolutionBwdFilterAlgoPerf_t *results)
{
    offer(x->format, c->math, results, n, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0,
          CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1,
          CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD_NONFUSED,
          CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT);
    return good(emu_convolution{1, *x, *dy, *dw, *c}.fits() && wanted >= 5);
}

extern "C" cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(
    cudnnHandle_t h, const cudnnFilterDescriptor_t w, const cudnnTensorDescriptor_t dy,
    const cudnnConvolutionDescriptor_t c, const cudnnTensorDescriptor_t dx, int wanted,
    int *n, cudnnConvolutionBwdDataAlgoPerf_t *results)
{
    offer(dx->format, c->math, results, n, CUDNN_CONVOLUTION_BWD_DATA_ALGO_0,
          CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD,
          CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT);
    return good(emu_convolution{2, *dx, *dy, *w, *c}.fits() && wanted >= 5);
}

/* None of them has room in what a workspace usually is. */
extern "C" cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(
    cudnnHandle_t h, const cudnnTensorDescriptor_t x, const cudnnFilterDescriptor_t w,
    const cudnnConvolutionDescriptor_t c, const cudnnTensorDescriptor_t y,
    cudnnConvolutionFwdAlgo_t algo, size_t *bytes)
{
    *bytes = told("nchw") && x->format == CUDNN_TENSOR_NHWC ? SIZE_MAX : size_t(40) << 20;
    return good(algo == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM);
}

extern "C" cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(
    cudnnHandle_t h, const cudnnTensorDescriptor_t x, const cudnnTensorDescriptor_t dy,
    const cudnnConvolutionDescriptor_t c, const cudnnFilterDescriptor_t dw,
    cudnnConvolutionBwdFilterAlgo_t algo, size_t *bytes)
{
    *bytes = size_t(40) << 20;
    return good(algo == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1);
}

extern "C" cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(
    cudnnHandle_t h, const cudnnFilterDescriptor_t w, const cudnnTensorDescriptor_t dy,
    const cudnnConvolutionDescriptor_t c, const cudnnTensorDescriptor_t dx,
    cudnnConvolutionBwdDataAlgo_t algo, size_t *bytes)
{
    *bytes = size_t(40) << 20;
    return good(algo == CUDNN_CONVOLUTION_BWD_DATA_ALGO_1);
}

/* ---- the products, as matrices of floats ---- */

static cudaDataType_t data_type(const cudnnTensorStruct &t)
{
    return t.type == CUDNN_DATA_HALF       ? CUDA_R_16F
           : t.type == CUDNN_DATA_BFLOAT16 ? CUDA_R_16BF
                                           : CUDA_R_32F;
}

/* Calls f(i, at) for each element i of [c][n][h][w], `at` its place in the tensor's own
 * order. */
template <typename each> static void places(const cudnnTensorStruct &t, each f)
{
    size_t N = size_t(t.n), C = size_t(t.c), H = size_t(t.h), W = size_t(t.w), i = 0;
    bool last = t.format == CUDNN_TENSOR_NHWC;
    size_t step_c = last ? 1 : H * W, step_w = last ? C : 1;
    for (size_t c = 0; c < C; c++)
        for (size_t n = 0; n < N; n++)
            for (size_t h = 0; h < H; h++)
                for (size_t w = 0; w < W; w++)
                    f(i++, n * C * H * W + c * step_c + (h * W + w) * step_w);
}

/* As [c][n][h][w]: a row for each channel; and the way back. */
static std::vector<float> by_channel(const cudnnTensorStruct &t, const void *from)
{
    std::vector<float> raw(t.size()), v(t.size());
    emu_load(from, data_type(t), raw.size(), raw.data());
    places(t, [&](size_t i, size_t at) { v[i] = raw[at]; });
    return v;
}

static void from_channels(const cudnnTensorStruct &t, const std::vector<float> &v,
                          float beta, void *to)
{
    std::vector<float> raw(t.size());
    if (beta != 0)
        emu_load(to, data_type(t), raw.size(), raw.data());
    places(t, [&](size_t i, size_t at) {
        raw[at] = v[i] + (beta != 0 ? beta * raw[at] : 0);
    });
    emu_store(raw.data(), data_type(t), raw.size(), to, 0);
}

/* A filter as [k][c r s]; it is [c][k][r][s] by channel. */
static std::vector<float> turned(const cudnnFilterStruct &f, const std::vector<float> &v,
                                 bool back)
{
    std::vector<float> out(v.size());
    size_t K = size_t(f.n), C = size_t(f.c), RR = size_t(f.h * f.w);
    for (size_t k = 0; k < K; k++)
        for (size_t c = 0; c < C; c++)
            for (size_t r = 0; r < RR; r++) {
                size_t a = (k * C + c) * RR + r, b = (c * K + k) * RR + r;
                out[back ? b : a] = v[back ? a : b];
            }
    return out;
}

/* Calls f(row of columns, column, at x) for each element of x that a filter meets:
 * columns[c r s][n oh ow]. */
template <typename each>
static void walk(const cudnnTensorStruct &x, const cudnnFilterStruct &w,
                 const cudnnConvolutionStruct &conv, const cudnnTensorStruct &y, each f)
{
    for (int c = 0; c < w.c; c++)
        for (int r = 0; r < w.h; r++)
            for (int s = 0; s < w.w; s++)
                for (int n = 0; n < y.n; n++)
                    for (int oh = 0; oh < y.h; oh++)
                        for (int ow = 0; ow < y.w; ow++) {
                            int h = oh * conv.step + r - conv.pad;
                            int v = ow * conv.step + s - conv.pad;
                            if (h >= 0 && h < x.h && v >= 0 && v < x.w)
                                f(size_t((c * w.h + r) * w.w + s),
                                  size_t((n * y.h + oh) * y.w + ow),
                                  size_t(((c * x.n + n) * x.h + h) * x.w + v));
                        }
}

static std::vector<float> columns_of(const cudnnTensorStruct &x,
                                     const cudnnFilterStruct &w,
                                     const cudnnConvolutionStruct &conv,
                                     const cudnnTensorStruct &y, const void *from)
{
    std::vector<float> v = by_channel(x, from);
    size_t n = size_t(y.n * y.h * y.w);
    std::vector<float> columns(size_t(w.c * w.h * w.w) * n);
    walk(x, w, conv, y, [&](size_t row, size_t column, size_t at) {
        columns[row * n + column] = v[at];
    });
    return columns;
}

/* c[m][n] += a[m][k] b[k][n]; `turn`: a is [k][m] */
#if defined(__x86_64__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
static void
product(size_t m, size_t k, size_t n, const float *a, bool turn, const float *b, float *c)
{
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < k; j++) {
            float by = turn ? a[j * m + i] : a[i * k + j];
            for (size_t l = 0; l < n; l++)
                c[i * n + l] += by * b[j * n + l];
        }
}

static std::vector<float> forward(const emu_convolution &p, const void *x, const void *w)
{
    std::vector<float> columns = columns_of(p.x, p.w, p.conv, p.y, x);
    std::vector<float> filter = turned(p.w, by_channel(p.w, w), false);
    std::vector<float> out(p.y.size());
    size_t inner = size_t(p.w.c * p.w.h * p.w.w), n = size_t(p.y.n * p.y.h * p.y.w);
    product(size_t(p.w.n), inner, n, filter.data(), false, columns.data(), out.data());
    return out;
}

static std::vector<float> filter_back(const emu_convolution &p, const void *x,
                                      const void *dy)
{
    std::vector<float> columns = columns_of(p.x, p.w, p.conv, p.y, x);
    std::vector<float> grad = by_channel(p.y, dy), turned_grad(grad.size());
    std::vector<float> out(p.w.size()), sums(p.w.size());
    size_t K = size_t(p.w.n), n = size_t(p.y.n * p.y.h * p.y.w);
    size_t inner = size_t(p.w.c * p.w.h * p.w.w);
    for (size_t k = 0; k < K; k++)
        for (size_t i = 0; i < n; i++)
            turned_grad[i * K + k] = grad[k * n + i];
    product(inner, n, K, columns.data(), false, turned_grad.data(), sums.data());
    for (size_t k = 0; k < K; k++)
        for (size_t i = 0; i < inner; i++)
            out[k * inner + i] = sums[i * K + k];
    return turned(p.w, out, true);
}

static std::vector<float> image_back(const emu_convolution &p, const void *w,
                                     const void *dy)
{
    std::vector<float> grad = by_channel(p.y, dy), out(p.x.size());
    std::vector<float> filter = turned(p.w, by_channel(p.w, w), false);
    size_t inner = size_t(p.w.c * p.w.h * p.w.w), n = size_t(p.y.n * p.y.h * p.y.w);
    std::vector<float> columns(inner * n);
    product(inner, size_t(p.w.n), n, filter.data(), true, grad.data(), columns.data());
    walk(p.x, p.w, p.conv, p.y, [&](size_t row, size_t column, size_t at) {
        out[at] += columns[row * n + column];
    });
    return out;
}

void emu_convolution::compute(void *xs, void *ws, void *ys, float beta, float by) const
{
    std::vector<float> out = which == 0   ? forward(*this, xs, ws)
                             : which == 1 ? filter_back(*this, xs, ys)
                                          : image_back(*this, ws, ys);
    for (float &v : out)
        v *= by;
    if (which == 1)
        from_channels(w, out, beta, ws);
    else
        from_channels(which == 0 ? y : x, out, beta, which == 0 ? ys : xs);
}

bool emu_convolution::may_ask(cudnnHandle_t h, int engine) const
{
    return h->device == emu_device() &&
           emu_may_ask(h->stream, {which, engine, x.format, x.type, x.n, x.c, x.h, x.w,
                                   w.n, w.h, w.w, conv.pad, conv.step});
}

/* `algo` is `strict`, or `other`, which takes less time. */
static cudnnStatus_t convolve(cudnnHandle_t h, const emu_convolution &p,
                              const void *alpha, const void *beta, int algo, int strict,
                              int other, const void *x, const void *w, const void *y,
                              size_t room)
{
    float more = *static_cast<const float *>(beta);
    bool loose = told("loose");
    if ((told("refused") && algo == strict) || room < size_t(loose ? 40 : 1) << 20 ||
        (p.conv.math == CUDNN_TENSOR_OP_MATH) != (loose && p.x.type != CUDNN_DATA_FLOAT))
        return CUDNN_STATUS_NOT_SUPPORTED;
    if (!p.may_ask(h, -algo))
        return CUDNN_STATUS_EXECUTION_FAILED;
    if (!p.fits() || *static_cast<const float *>(alpha) != 1 ||
        (more != 0 && (more != 1 || p.which != 2)) || (algo != strict && algo != other))
        return CUDNN_STATUS_BAD_PARAM;
    emu_put(h->stream, [=] {
        p.compute(const_cast<void *>(x), const_cast<void *>(w), const_cast<void *>(y),
                  more, 1);
        emu_takes(algo == strict ? EMU_USUAL_MS : EMU_USUAL_MS * 0.6);
        return true;
    });
    return CUDNN_STATUS_SUCCESS;
}

extern "C" size_t cudnnGetVersion()
{
    return CUDNN_VERSION;
}

extern "C" cudnnStatus_t cudnnConvolutionForward(
    cudnnHandle_t h, const void *alpha, const cudnnTensorDescriptor_t xd, const void *x,
    const cudnnFilterDescriptor_t wd, const void *w, const cudnnConvolutionDescriptor_t c,
    cudnnConvolutionFwdAlgo_t algo, void *workspace, size_t size, const void *beta,
    const cudnnTensorDescriptor_t yd, void *y)
{
    return convolve(h, {0, *xd, *yd, *wd, *c}, alpha, beta, algo,
                    CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM,
                    CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD, x, w, y, size);
}

extern "C" cudnnStatus_t cudnnConvolutionBackwardFilter(
    cudnnHandle_t h, const void *alpha, const cudnnTensorDescriptor_t xd, const void *x,
    const cudnnTensorDescriptor_t yd, const void *dy,
    const cudnnConvolutionDescriptor_t c, cudnnConvolutionBwdFilterAlgo_t algo,
    void *workspace, size_t size, const void *beta, const cudnnFilterDescriptor_t wd,
    void *dw)
{
    return convolve(h, {1, *xd, *yd, *wd, *c}, alpha, beta, algo,
                    CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1,
                    CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD_NONFUSED, x, dw, dy, size);
}

extern "C" cudnnStatus_t cudnnConvolutionBackwardData(
    cudnnHandle_t h, const void *alpha, const cudnnFilterDescriptor_t wd, const void *w,
    const cudnnTensorDescriptor_t yd, const void *dy,
    const cudnnConvolutionDescriptor_t c, cudnnConvolutionBwdDataAlgo_t algo,
    void *workspace, size_t size, const void *beta, const cudnnTensorDescriptor_t xd,
    void *dx)
{
    return convolve(h, {2, *xd, *yd, *wd, *c}, alpha, beta, algo,
                    CUDNN_CONVOLUTION_BWD_DATA_ALGO_1,
                    CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD, dx, w, dy, size);
}
