/* tests/worker/cuda/emu_cudnn.cc - see emu.h: convolutions, unpadded, stride 1, NCHW */
#include "tests/worker/cuda/emu.h"

#include <cudnn.h>
#include <cstring>

struct cudnnContext {
    cudaStream_t stream = nullptr;
};

struct cudnnTensorStruct {
    int n, c, h, w;
};

struct cudnnFilterStruct {
    int k, c, r, s;
};

struct cudnnConvolutionStruct {
    bool set = false;
};

static cudnnStatus_t good(bool yes)
{
    return yes ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}

extern "C" const char *cudnnGetErrorString(cudnnStatus_t rc)
{
    return rc == CUDNN_STATUS_BAD_PARAM ? "CUDNN_STATUS_BAD_PARAM" : "an error";
}

extern "C" cudnnStatus_t cudnnCreate(cudnnHandle_t *h)
{
    *h = new cudnnContext;
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
    return CUDNN_STATUS_SUCCESS;
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
    *t = {n, c, h, w};
    return good(format == CUDNN_TENSOR_NCHW && type == CUDNN_DATA_FLOAT && n > 0 &&
                c > 0 && h > 0 && w > 0);
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
    *f = {k, c, r, s};
    return good(type == CUDNN_DATA_FLOAT && format == CUDNN_TENSOR_NCHW);
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
    c->set = true;
    return good(pad_h == 0 && pad_w == 0 && step_h == 1 && step_w == 1 &&
                dilation_h == 1 && dilation_w == 1 && mode == CUDNN_CROSS_CORRELATION &&
                compute == CUDNN_DATA_FLOAT);
}

extern "C" cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t c,
                                                     cudnnMathType_t math)
{
    return good(math == CUDNN_DEFAULT_MATH || math == CUDNN_FMA_MATH);
}

static bool fits(const cudnnTensorStruct &x, const cudnnFilterStruct &w,
                 const cudnnTensorStruct &y)
{
    return x.n == y.n && x.c == w.c && y.c == w.k && y.h == x.h - w.r + 1 &&
           y.w == x.w - w.s + 1;
}

/* Two algorithms, the faster one not deterministic: the second must be chosen. */
template <typename perf, typename algo>
static void offer(perf *results, int *n, algo loose, algo strict)
{
    memset(results, 0, 2 * sizeof *results);
    results[0].algo = loose;
    results[0].determinism = CUDNN_NON_DETERMINISTIC;
    results[1].algo = strict;
    results[1].determinism = CUDNN_DETERMINISTIC;
    results[1].memory = 1 << 20;
    *n = 2;
}

extern "C" cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(
    cudnnHandle_t h, const cudnnTensorDescriptor_t x, const cudnnFilterDescriptor_t w,
    const cudnnConvolutionDescriptor_t c, const cudnnTensorDescriptor_t y, int wanted,
    int *n, cudnnConvolutionFwdAlgoPerf_t *results)
{
    offer(results, n, CUDNN_CONVOLUTION_FWD_ALGO_GEMM,
          CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM);
    return good(fits(*x, *w, *y) && c->set && wanted >= 2);
}

extern "C" cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(
    cudnnHandle_t h, const cudnnTensorDescriptor_t x, const cudnnTensorDescriptor_t dy,
    const cudnnConvolutionDescriptor_t c, const cudnnFilterDescriptor_t dw, int wanted,
    int *n, cudnnConvolutionBwdFilterAlgoPerf_t *results)
{
    offer(results, n, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0,
          CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1);
    return good(fits(*x, *dw, *dy) && c->set && wanted >= 2);
}

extern "C" cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(
    cudnnHandle_t h, const cudnnFilterDescriptor_t w, const cudnnTensorDescriptor_t dy,
    const cudnnConvolutionDescriptor_t c, const cudnnTensorDescriptor_t dx, int wanted,
    int *n, cudnnConvolutionBwdDataAlgoPerf_t *results)
{
    offer(results, n, CUDNN_CONVOLUTION_BWD_DATA_ALGO_0,
          CUDNN_CONVOLUTION_BWD_DATA_ALGO_1);
    return good(fits(*dx, *w, *dy) && c->set && wanted >= 2);
}

/* Calls f(at x, at w, at y) for each product of a convolution. */
template <typename each>
static void walk(const cudnnTensorStruct &x, const cudnnFilterStruct &w,
                 const cudnnTensorStruct &y, each f)
{
    for (int n = 0; n < y.n; n++)
        for (int k = 0; k < w.k; k++)
            for (int oh = 0; oh < y.h; oh++)
                for (int ow = 0; ow < y.w; ow++)
                    for (int c = 0; c < w.c; c++)
                        for (int r = 0; r < w.r; r++)
                            for (int s = 0; s < w.s; s++)
                                f(size_t(((n * x.c + c) * x.h + oh + r) * x.w + ow + s),
                                  size_t(((k * w.c + c) * w.r + r) * w.s + s),
                                  size_t(((n * y.c + k) * y.h + oh) * y.w + ow));
}

static bool plain(const void *alpha, const void *beta)
{
    return *static_cast<const float *>(alpha) == 1 &&
           *static_cast<const float *>(beta) == 0;
}

extern "C" cudnnStatus_t
cudnnConvolutionForward(cudnnHandle_t h, const void *alpha,
                        const cudnnTensorDescriptor_t xd, const void *x,
                        const cudnnFilterDescriptor_t wd, const void *w,
                        const cudnnConvolutionDescriptor_t c,
                        cudnnConvolutionFwdAlgo_t algo, void *workspace, size_t size,
                        const void *beta, const cudnnTensorDescriptor_t yd, void *y)
{
    cudnnTensorStruct sx = *xd, sy = *yd;
    cudnnFilterStruct sw = *wd;
    const float *fx = static_cast<const float *>(x), *fw = static_cast<const float *>(w);
    float *fy = static_cast<float *>(y);
    emu_put(h->stream, [=] {
        memset(fy, 0, sizeof(float) * size_t(sy.n * sy.c * sy.h * sy.w));
        walk(sx, sw, sy,
             [=](size_t ix, size_t iw, size_t iy) { fy[iy] += fx[ix] * fw[iw]; });
        return true;
    });
    return good(fits(sx, sw, sy) && plain(alpha, beta) &&
                algo == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM);
}

extern "C" cudnnStatus_t cudnnConvolutionBackwardFilter(
    cudnnHandle_t h, const void *alpha, const cudnnTensorDescriptor_t xd, const void *x,
    const cudnnTensorDescriptor_t yd, const void *dy, const cudnnConvolutionDescriptor_t c,
    cudnnConvolutionBwdFilterAlgo_t algo, void *workspace, size_t size, const void *beta,
    const cudnnFilterDescriptor_t wd, void *dw)
{
    cudnnTensorStruct sx = *xd, sy = *yd;
    cudnnFilterStruct sw = *wd;
    const float *fx = static_cast<const float *>(x),
                *fy = static_cast<const float *>(dy);
    float *fw = static_cast<float *>(dw);
    emu_put(h->stream, [=] {
        memset(fw, 0, sizeof(float) * size_t(sw.k * sw.c * sw.r * sw.s));
        walk(sx, sw, sy,
             [=](size_t ix, size_t iw, size_t iy) { fw[iw] += fx[ix] * fy[iy]; });
        return true;
    });
    return good(fits(sx, sw, sy) && plain(alpha, beta) &&
                algo == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1);
}

extern "C" cudnnStatus_t cudnnConvolutionBackwardData(
    cudnnHandle_t h, const void *alpha, const cudnnFilterDescriptor_t wd, const void *w,
    const cudnnTensorDescriptor_t yd, const void *dy, const cudnnConvolutionDescriptor_t c,
    cudnnConvolutionBwdDataAlgo_t algo, void *workspace, size_t size, const void *beta,
    const cudnnTensorDescriptor_t xd, void *dx)
{
    cudnnTensorStruct sx = *xd, sy = *yd;
    cudnnFilterStruct sw = *wd;
    const float *fw = static_cast<const float *>(w),
                *fy = static_cast<const float *>(dy);
    float *fx = static_cast<float *>(dx);
    emu_put(h->stream, [=] {
        memset(fx, 0, sizeof(float) * size_t(sx.n * sx.c * sx.h * sx.w));
        walk(sx, sw, sy,
             [=](size_t ix, size_t iw, size_t iy) { fx[ix] += fw[iw] * fy[iy]; });
        return true;
    });
    return good(fits(sx, sw, sy) && plain(alpha, beta) &&
                algo == CUDNN_CONVOLUTION_BWD_DATA_ALGO_1);
}
