/* worker/cuda/kernels.cu - see kernels.h
 *
 * Grid-stride loops, or one block where an order of summation has to be kept. LAUNCH is
 * the only way in: the tests compile this file for the CPU and put a loop behind it.
 */
#include "worker/cuda/kernels.h"

#include "worker/kernels/rng.h"

#ifndef LAUNCH
#define LAUNCH(kernel, blocks, threads, stream, ...)                                     \
    kernel<<<(blocks), (threads), 0, (stream)>>>(__VA_ARGS__)
#endif

enum { THREADS = 256, MAX_BLOCKS = 2048 };

static int blocks_for(int64_t n)
{
    int64_t blocks = (n + THREADS - 1) / THREADS;
    return (int)(blocks < 1 ? 1 : blocks > MAX_BLOCKS ? MAX_BLOCKS : blocks);
}

#define EACH(i, n)                                                                       \
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;                          \
    i < (n);                                                                             \
    i += (int64_t)gridDim.x * blockDim.x

/* The sum of everybody's x in a block of THREADS, in a fixed order; thread 0 has it. */
static __device__ double block_sum(double x, double *room)
{
    room[threadIdx.x] = x;
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < (unsigned)half)
            room[threadIdx.x] += room[threadIdx.x + half];
        __syncthreads();
    }
    double sum = room[0];
    __syncthreads();
    return sum;
}

/* ---- the batch ---- */

static __global__ void gather_images(const struct cuda_step *s, const uint32_t *which,
                                     int n, int len, int plane, const float *as_float,
                                     float *x, uint8_t *labels)
{
    for (EACH(i, (int64_t)n * len)) {
        int64_t b = i / len, at = i % len;
        x[i] = as_float[at / plane * 256 + s->pixels[(int64_t)which[b] * len + at]];
        if (at == 0)
            labels[b] = s->labels[which[b]];
    }
}

void cuda_gather_images(const struct cuda_step *s, const uint32_t *which, int n, int len,
                        int plane, const float *as_float, float *x, uint8_t *labels,
                        cudaStream_t stream)
{
    LAUNCH(gather_images, blocks_for((int64_t)n * len), THREADS, stream, s, which, n, len,
           plane, as_float, x, labels);
}

static __global__ void gather_floats(const struct cuda_step *s, const uint32_t *which,
                                     int n, int len, int outputs, float *x, float *t)
{
    for (EACH(i, (int64_t)n * len))
        x[i] = s->inputs[(int64_t)which[i / len] * len + i % len];
    for (EACH(i, (int64_t)n * outputs))
        t[i] = s->targets[(int64_t)which[i / outputs] * outputs + i % outputs];
}

void cuda_gather_floats(const struct cuda_step *s, const uint32_t *which, int n, int len,
                        int outputs, float *x, float *t, cudaStream_t stream)
{
    int most = len > outputs ? len : outputs;
    LAUNCH(gather_floats, blocks_for((int64_t)n * most), THREADS, stream, s, which, n,
           len, outputs, x, t);
}

/* ---- after a product ---- */

static __global__ void bias_relu(const float *z, const float *bias, int64_t n, int K,
                                 int inner, float *y)
{
    for (EACH(i, n)) {
        float v = z[i] + bias[i / inner % K];
        y[i] = v < 0 ? 0 : v; /* not-a-number stays */
    }
}

/* The first of equal maxima in row order; not-a-number counts as more than any number. */
static __global__ void bias_relu_pool(const float *z, const float *bias, int64_t n, int K,
                                      int H, int W, float *y, uint8_t *arg)
{
    int OH = H / 2, OW = W / 2;
    for (EACH(i, n)) {
        int ow = (int)(i % OW), oh = (int)(i / OW % OH);
        int64_t plane = i / ((int64_t)OW * OH);
        float b = bias[plane % K];
        const float *from = z + (plane * H + 2 * oh) * W + 2 * ow;
        float best = 0;
        uint8_t at = 0;
        for (uint8_t q = 0; q < 4; q++) {
            float v = from[q / 2 * W + q % 2] + b;
            v = v < 0 ? 0 : v;
            if (q == 0 || v > best || v != v) {
                best = v;
                at = q;
            }
        }
        y[i] = best;
        arg[i] = at;
    }
}

void cuda_bias_relu(const float *z, const float *bias, int n, int K, int H, int W,
                    float *y, uint8_t *arg, cudaStream_t stream)
{
    if (arg) {
        int64_t all = (int64_t)n * K * (H / 2) * (W / 2);
        LAUNCH(bias_relu_pool, blocks_for(all), THREADS, stream, z, bias, all, K, H, W, y,
               arg);
    } else {
        int64_t all = (int64_t)n * K * H * W;
        LAUNCH(bias_relu, blocks_for(all), THREADS, stream, z, bias, all, K, H * W, y);
    }
}

/* A thread for each element of dz: it looks up whether its window's maximum was here. */
static __global__ void unpool(const float *y, const float *dy, const uint8_t *arg,
                              float scale, int64_t n, int H, int W, float *dz)
{
    int OH = H / 2, OW = W / 2;
    for (EACH(i, n)) {
        int w = (int)(i % W), h = (int)(i / W % H);
        int64_t plane = i / ((int64_t)W * H);
        int64_t from = (plane * OH + h / 2) * OW + w / 2;
        bool inside = h / 2 < OH && w / 2 < OW;
        bool here = inside && arg[from] == h % 2 * 2 + w % 2 && y[from] > 0;
        dz[i] = here ? dy[from] * scale : 0;
    }
}

static __global__ void mask(const float *y, const float *dy, float scale, int64_t n,
                            float *g)
{
    for (EACH(i, n))
        g[i] = y[i] > 0 ? dy[i] * scale : 0;
}

void cuda_bias_relu_back(const float *y, const float *dy, const uint8_t *arg, float scale,
                         int n, int K, int H, int W, float *dz, cudaStream_t stream)
{
    int64_t all = (int64_t)n * K * H * W;
    if (arg)
        LAUNCH(unpool, blocks_for(all), THREADS, stream, y, dy, arg, scale, all, H, W,
               dz);
    else
        LAUNCH(mask, blocks_for(all), THREADS, stream, y, dy, scale, all, dz);
}

void cuda_mask(const float *y, float *dy, float scale, int64_t n, cudaStream_t stream)
{
    LAUNCH(mask, blocks_for(n), THREADS, stream, y, dy, scale, n, dy);
}

/* A block per channel. */
static __global__ void sum_channels(const float *x, int n, int K, int inner, float *sums)
{
    __shared__ double room[THREADS];
    int64_t each = (int64_t)n * inner;
    double sum = 0;
    for (int64_t i = threadIdx.x; i < each; i += THREADS)
        sum += (double)x[(i / inner * K + blockIdx.x) * inner + i % inner];
    sum = block_sum(sum, room);
    if (threadIdx.x == 0)
        sums[blockIdx.x] = (float)sum;
}

/* A thread per feature: neighbours read neighbours. */
static __global__ void sum_features(const float *x, int n, int K, float *sums)
{
    for (EACH(k, K)) {
        double sum = 0;
        for (int b = 0; b < n; b++)
            sum += (double)x[(int64_t)b * K + k];
        sums[k] = (float)sum;
    }
}

void cuda_sum_channels(const float *x, int n, int K, int inner, float *sums,
                       cudaStream_t stream)
{
    if (inner == 1)
        LAUNCH(sum_features, (K + 31) / 32, 32, stream, x, n, K, sums);
    else
        LAUNCH(sum_channels, K, THREADS, stream, x, n, K, inner, sums);
}

static __global__ void dropout(float *y, int64_t n, uint32_t below, float scale,
                               const struct cuda_step *s, int batch, int layer,
                               int layers)
{
    uint64_t seed = s->seed + ((uint64_t)batch << 40);
    uint64_t key = rng_key(seed, s->taken * (uint64_t)layers + (uint64_t)layer);
    for (EACH(i, n)) {
        uint64_t word = rng_word(key, (uint64_t)i / 4);
        y[i] = (word >> i % 4 * 16 & 0xffff) < below ? 0 : y[i] * scale;
    }
}

void cuda_dropout(float *y, int64_t n, float p, const struct cuda_step *s, int batch,
                  int layer, int layers, cudaStream_t stream)
{
    LAUNCH(dropout, blocks_for(n), THREADS, stream, y, n, rng_drop_below(p),
           rng_keep_scale(p), s, batch, layer, layers);
}

/* ---- the loss ---- */

/* `sum` over n samples' losses, `right` of them right. */
static __device__ void tell(const struct cuda_step *s, int batch, double sum, int n,
                            double right, struct cuda_head *head, float *own)
{
    float before = batch > 0 ? *own : 0, loss = batch > 0 ? head->loss : 0;
    int all = s && s->mine > 0 ? s->mine : n;
    float mean = n > 0 ? (float)(sum / all) : 0;
    *own = before + mean;
    head->loss = loss + (s ? mean * s->share : mean);
    head->correct = (batch > 0 ? head->correct : 0) + (float)right;
    head->bad = *own - *own == 0 ? 0 : 1; /* infinite or not a number */
    head->stop = s ? s->stop : 0;
    head->interrupted = s ? s->interrupted : 0;
    head->warned = s ? s->warned : 0;
    head->skipped = 0;
}

static __global__ void softmax_loss(const float *logits, const uint8_t *labels, float *dy,
                                    int n, int K, const struct cuda_step *s, int batch,
                                    struct cuda_head *head, float *own)
{
    __shared__ double room[THREADS];
    double loss = 0, right = 0;
    float scale = s ? s->share / (float)s->mine : 0;
    for (int b = threadIdx.x; b < n; b += THREADS) {
        const float *l = logits + (int64_t)b * K;
        int label = labels[b], best = 0;
        for (int k = 1; k < K; k++)
            if (l[k] > l[best])
                best = k;
        right += best == label;
        double sum = 0; /* of e^(logit - max), which cannot overflow */
        for (int k = 0; k < K; k++)
            sum += (double)expf(l[k] - l[best]);
        loss += log(sum) - (double)(l[label] - l[best]);
        for (int k = 0; dy && k < K; k++) {
            float p = expf(l[k] - l[best]) / (float)sum;
            dy[(int64_t)b * K + k] = (p - (k == label ? 1.0f : 0.0f)) * scale;
        }
    }
    loss = block_sum(loss, room);
    right = block_sum(right, room);
    if (threadIdx.x == 0)
        tell(s, batch, loss, n, right, head, own);
}

void cuda_softmax_loss(const float *logits, const uint8_t *labels, float *dy, int n,
                       int K, const struct cuda_step *s, int batch,
                       struct cuda_head *head, float *own, cudaStream_t stream)
{
    LAUNCH(softmax_loss, 1, THREADS, stream, logits, labels, dy, n, K, s, batch, head,
           own);
}

static __global__ void mse_loss(const float *y, const float *t, float *dy, int n, int K,
                                const struct cuda_step *s, int batch,
                                struct cuda_head *head, float *own)
{
    __shared__ double room[THREADS];
    int64_t all = (int64_t)n * K;
    double loss = 0;
    for (int64_t i = threadIdx.x; i < all; i += THREADS) {
        float d = y[i] - t[i];
        loss += (double)d * (double)d;
        if (dy)
            dy[i] = 2 * d * s->share / ((float)s->mine * (float)K);
    }
    loss = block_sum(loss, room);
    if (threadIdx.x == 0)
        tell(s, batch, loss / K, n, 0, head, own);
}

void cuda_mse_loss(const float *y, const float *t, float *dy, int n, int K,
                   const struct cuda_step *s, int batch, struct cuda_head *head,
                   float *own, cudaStream_t stream)
{
    LAUNCH(mse_loss, 1, THREADS, stream, y, t, dy, n, K, s, batch, head, own);
}

static __global__ void no_loss(const struct cuda_step *s, struct cuda_head *head,
                               float *own)
{
    if (threadIdx.x == 0)
        tell(s, 0, 0, 0, 0, head, own);
}

void cuda_no_loss(const struct cuda_step *s, struct cuda_head *head, float *own,
                  cudaStream_t stream)
{
    LAUNCH(no_loss, 1, 32, stream, s, head, own);
}

/* ---- the optimiser ---- */

static __global__ void add(float *to, const float *from, int64_t n)
{
    for (EACH(i, n))
        to[i] += from[i];
}

void cuda_add(float *to, const float *from, int64_t n, cudaStream_t stream)
{
    LAUNCH(add, blocks_for(n), THREADS, stream, to, from, n);
}

/* Each block its part, then one block all parts: the same order every time. */
static __global__ void sum_squares(const float *g, int64_t n, double *parts)
{
    __shared__ double room[THREADS];
    double sum = 0;
    for (EACH(i, n))
        sum += (double)g[i] * (double)g[i];
    sum = block_sum(sum, room);
    if (threadIdx.x == 0)
        parts[blockIdx.x] = sum;
}

static __global__ void judge(const double *parts, float most, struct cuda_head *head,
                             float *scale)
{
    __shared__ double room[THREADS];
    double norm = sqrt(block_sum(parts[threadIdx.x], room));
    if (threadIdx.x > 0)
        return;
    *scale = most > 0 && norm > (double)most ? (float)((double)most / (norm + 1e-6)) : 1;
    if (!(norm - norm == 0))
        head->bad += 1;
}

void cuda_clip(const float *g, int64_t n, float most, double *room, struct cuda_head *head,
               float *scale, cudaStream_t stream)
{
    static_assert((int)CUDA_PARTS == (int)THREADS, "a thread per part");
    LAUNCH(sum_squares, CUDA_PARTS, THREADS, stream, g, n, room);
    LAUNCH(judge, 1, THREADS, stream, room, most, head, scale);
}

static __global__ void sgd(float *w, const float *g, float *m, int64_t n, float momentum,
                           float decay, const float *scale, const struct cuda_step *s,
                           const struct cuda_head *head)
{
    if (head->bad > 0)
        return;
    for (EACH(i, n)) {
        float d = g[i] * *scale + decay * w[i];
        if (m)
            d = m[i] = momentum * m[i] + d;
        w[i] -= s->lr * d;
    }
}

void cuda_sgd(float *w, const float *g, float *m, int64_t n, float momentum, float decay,
              const float *scale, const struct cuda_step *s, const struct cuda_head *head,
              cudaStream_t stream)
{
    LAUNCH(sgd, blocks_for(n), THREADS, stream, w, g, m, n, momentum, decay, scale, s,
           head);
}

static __global__ void adam(float *w, const float *g, float *m, float *v, int64_t n,
                            float b1, float b2, float eps, float decay,
                            const uint64_t *updates, const float *scale,
                            const struct cuda_step *s, const struct cuda_head *head)
{
    if (head->bad > 0)
        return;
    double t = (double)(*updates + 1);
    double unbias1 = 1 - pow((double)b1, t);
    float rate = (float)((double)s->lr / unbias1);
    float root2 = (float)sqrt(1 - pow((double)b2, t));
    for (EACH(i, n)) {
        float d = g[i] * *scale + decay * w[i];
        m[i] = b1 * m[i] + (1 - b1) * d;
        v[i] = b2 * v[i] + (1 - b2) * d * d;
        w[i] -= rate * m[i] / (sqrtf(v[i]) / root2 + eps);
    }
}

void cuda_adam(float *w, const float *g, float *m, float *v, int64_t n, float b1,
               float b2, float eps, float decay, const uint64_t *updates,
               const float *scale, const struct cuda_step *s,
               const struct cuda_head *head, cudaStream_t stream)
{
    LAUNCH(adam, blocks_for(n), THREADS, stream, w, g, m, v, n, b1, b2, eps, decay,
           updates, scale, s, head);
}

static __global__ void adadelta(float *w, const float *g, float *sq, float *acc,
                                int64_t n, float rho, float eps, float decay,
                                const float *scale, const struct cuda_step *s,
                                const struct cuda_head *head)
{
    if (head->bad > 0)
        return;
    for (EACH(i, n)) {
        float d = g[i] * *scale + decay * w[i];
        sq[i] = rho * sq[i] + (1 - rho) * d * d;
        float delta = sqrtf(acc[i] + eps) / sqrtf(sq[i] + eps) * d;
        acc[i] = rho * acc[i] + (1 - rho) * delta * delta;
        w[i] -= s->lr * delta;
    }
}

void cuda_adadelta(float *w, const float *g, float *sq, float *acc, int64_t n, float rho,
                   float eps, float decay, const float *scale,
                   const struct cuda_step *s, const struct cuda_head *head,
                   cudaStream_t stream)
{
    LAUNCH(adadelta, blocks_for(n), THREADS, stream, w, g, sq, acc, n, rho, eps, decay,
           scale, s, head);
}

static __global__ void finish(const struct cuda_head *head, const float *own, bool skip,
                              struct cuda_result *result, uint64_t *updates)
{
    if (threadIdx.x > 0)
        return;
    result->head = *head;
    result->loss = *own;
    *updates += head->bad > 0 ? 0 : 1;
    if (skip && head->bad > 0) {
        result->head.bad = 0;
        result->head.skipped = 1;
    }
}

void cuda_finish(const struct cuda_head *head, const float *own, bool skip,
                 struct cuda_result *result, uint64_t *updates, cudaStream_t stream)
{
    LAUNCH(finish, 1, 32, stream, head, own, skip, result, updates);
}
