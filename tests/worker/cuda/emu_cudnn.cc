/* tests/worker/cuda/emu_cudnn.cc - see emu.h: cuDNN's handles, and its convolutions as
 * products of matrices
 */
#include "tests/worker/cuda/emu_cudnn.h"

#include "tests/worker/cuda/emu_types.h"

#include <cstdio>

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
    return h->device == emu_device_of(s) ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}

extern "C" size_t cudnnGetVersion()
{
    return CUDNN_VERSION;
}

bool emu_convolution::fits() const
{
    return x.n == y.n && x.c == w.c && y.c == w.n && x.type == w.type &&
           x.type == y.type && y.h == (x.h + 2 * pad - w.h) / step + 1 &&
           y.w == (x.w + 2 * pad - w.w) / step + 1;
}

/* ---- the products, as matrices of floats ---- */

static cudaDataType_t data_type(const emu_tensor &t)
{
    return t.type == CUDNN_DATA_HALF       ? CUDA_R_16F
           : t.type == CUDNN_DATA_BFLOAT16 ? CUDA_R_16BF
                                           : CUDA_R_32F;
}

/* Calls f(i, at) for each element i of [c][n][h][w], `at` its place in the tensor. */
template <typename each> static void places(const emu_tensor &t, each f)
{
    size_t C = size_t(t.c), all = t.size() / C, i = 0;
    for (size_t c = 0; c < C; c++)
        for (size_t at = 0; at < all; at++)
            f(i++, at * C + c);
}

/* As [c][n][h][w]: a row for each channel; and the way back. */
static std::vector<float> by_channel(const emu_tensor &t, const void *from)
{
    std::vector<float> raw(t.size()), v(t.size());
    emu_load(from, data_type(t), raw.size(), raw.data());
    places(t, [&](size_t i, size_t at) { v[i] = raw[at]; });
    return v;
}

static void from_channels(const emu_tensor &t, const std::vector<float> &v, float beta,
                          void *to)
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
static std::vector<float> turned(const emu_tensor &f, const std::vector<float> &v,
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
template <typename each> static void walk(const emu_convolution &p, each f)
{
    const emu_tensor &x = p.x, &y = p.y, &w = p.w;
    for (int c = 0; c < w.c; c++)
        for (int r = 0; r < w.h; r++)
            for (int s = 0; s < w.w; s++)
                for (int n = 0; n < y.n; n++)
                    for (int oh = 0; oh < y.h; oh++)
                        for (int ow = 0; ow < y.w; ow++) {
                            int h = oh * p.step + r - p.pad;
                            int v = ow * p.step + s - p.pad;
                            if (h >= 0 && h < x.h && v >= 0 && v < x.w)
                                f(size_t((c * w.h + r) * w.w + s),
                                  size_t((n * y.h + oh) * y.w + ow),
                                  size_t(((c * x.n + n) * x.h + h) * x.w + v));
                        }
}

static std::vector<float> columns_of(const emu_convolution &p, const void *from)
{
    std::vector<float> v = by_channel(p.x, from);
    size_t n = size_t(p.y.n * p.y.h * p.y.w);
    std::vector<float> columns(size_t(p.w.c * p.w.h * p.w.w) * n);
    walk(p, [&](size_t row, size_t column, size_t at) {
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
    std::vector<float> columns = columns_of(p, x);
    std::vector<float> filter = turned(p.w, by_channel(p.w, w), false);
    std::vector<float> out(p.y.size());
    size_t inner = size_t(p.w.c * p.w.h * p.w.w), n = size_t(p.y.n * p.y.h * p.y.w);
    product(size_t(p.w.n), inner, n, filter.data(), false, columns.data(), out.data());
    return out;
}

static std::vector<float> filter_back(const emu_convolution &p, const void *x,
                                      const void *dy)
{
    std::vector<float> columns = columns_of(p, x);
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
    walk(p, [&](size_t row, size_t column, size_t at) {
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
           emu_may_ask(h->stream, {which, engine, x.type, x.n, x.c, x.h, x.w, w.n, w.h,
                                   w.w, pad, step});
}
