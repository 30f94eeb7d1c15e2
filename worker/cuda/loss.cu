/* worker/cuda/loss.cu - see kernels.h: the loss with its gradient, and a step's
 * numbers
 */
#include "worker/cuda/device.h"

/* `sum` of the losses of the samples, of which `right` were classified correctly. */
static __device__ void tell(const struct cuda_loss &l, double sum, double right)
{
    int all = l.s && l.s->mine > 0 ? l.s->mine : l.n;
    float mean = l.n > 0 ? (float)(sum / all) : 0, *own = &l.verdict->own;
    struct step_sums before = {}, now = {};
    if (l.batch > 0)
        before = l.verdict->head.sums;
    if (l.s)
        now = l.s->told;
    *own = (l.batch > 0 ? *own : 0) + mean;
    now.loss = before.loss + (l.s ? mean * l.s->share : mean);
    now.correct = before.correct + (float)right;
    now.bad = *own - *own == 0 ? 0 : 1; /* infinite or NaN */
    l.verdict->head.sums = now;
}

/* The factor of each sample's gradient. */
static __device__ float weight_of(const struct cuda_loss &l)
{
    return l.s ? l.s->share / (float)l.s->mine * (l.scaler ? l.scaler->scale : 1) : 0;
}

/* What smoothing adds to a loss: `right` is the label's logit, `all` the sum of the K. */
static __device__ inline double smoothed(const struct cuda_loss &l, float right,
                                         float all)
{
    return l.smooth > 0 ? (double)(l.smooth * (right - all / (float)l.K)) : 0;
}

/* The probability that a class should have. */
static __device__ inline float wanted(const struct cuda_loss &l, bool label)
{
    return l.smooth / (float)l.K + (label ? 1 - l.smooth : 0);
}

template <class T>
static __global__ void mse_loss(struct cuda_loss l, const float *y, const float *t, T *dy)
{
    __shared__ double room[THREADS];
    int64_t all = (int64_t)l.n * l.K;
    double loss = 0;
    float scale = 2 * weight_of(l) / (float)l.K;
    for (int64_t i = threadIdx.x; i < all; i += THREADS) {
        float d = y[i] - t[i];
        loss += (double)d * (double)d;
        if (dy)
            put(&dy[i], d * scale);
    }
    loss = block_sum(loss, room);
    if (threadIdx.x == 0)
        tell(l, loss / l.K, 0);
}

void cuda_mse_loss(const struct cuda_loss *l, const float *y, const float *t, void *dy,
                   cudaStream_t stream)
{
    FOR_TYPE(l->type, LAUNCH(mse_loss<T>, 1, THREADS, stream, *l, y, t, (T *)dy));
}

/* ---- classes of images, and tokens ---- */

static __device__ inline float larger(float a, float b)
{
    return a > b ? a : b;
}

/* The maximum, or the sum, over all threads of a block, returned to all of them;
 * sixteen at a time. */
template <bool LARGEST> static __device__ inline float of_block(float x, float *room)
{
    enum { SIDE = 16 };
    uint32_t t = threadIdx.x;
    room[t] = x;
    __syncthreads();
    float all = room[t % SIDE];
    for (int i = 1; i < SIDE; i++) {
        float v = room[i * SIDE + t % SIDE];
        all = LARGEST ? larger(all, v) : all + v;
    }
    __syncthreads();
    if (t < SIDE)
        room[t] = all;
    __syncthreads();
    all = room[0];
    for (int i = 1; i < SIDE; i++)
        all = LARGEST ? larger(all, room[i]) : all + room[i];
    __syncthreads();
    return all;
}

/* Rows of a sample. */
static __device__ __host__ inline int each_of(int context)
{
    return context > 0 ? context : 1;
}

static __device__ inline int label_of(const uint32_t *labels, int context, int row)
{
    return (int)(context > 0 ? labels[row / context * (context + 1) + row % context + 1]
                             : labels[row]);
}

/* A block processes a row at a time. */
template <class T>
static __global__ void class_loss(struct cuda_loss l, const float *logits,
                                  const uint32_t *labels, int context, int from, int rows,
                                  T *dlogits, float *losses)
{
    __shared__ float room[THREADS];
    float scale = weight_of(l) / (float)each_of(context);
    for (int r = blockIdx.x; r < rows; r += gridDim.x) {
        const float *row = logits + (int64_t)r * l.K;
        int at = from + r, label = label_of(labels, context, at);
        float most = -3e38f, all = 0, right = row[label];
        float others = 0; /* the sum of e^(logit - most), without the 1 of the largest */
        int where = l.K;
        for (int k = threadIdx.x; k < l.K; k += THREADS) {
            float v = row[k];
            if (v > most) { /* rescales the sum to the new maximum */
                others = (others + 1) * expf(most - v);
                most = v;
                where = k;
            } else {
                others += expf(v - most);
            }
            all += v;
        }
        float best = of_block<true>(most, room), by = expf(most - best);
        float first = -of_block<true>((float)-(most == best ? where : l.K), room);
        others = of_block<false>(others * by + (where == (int)first ? 0 : by), room);
        if (l.smooth > 0)
            all = of_block<false>(all, room);
        if (threadIdx.x == 0) {
            losses[2 * (int64_t)at] =
                log1pf(others) + (best - right) + (float)smoothed(l, right, all);
            losses[2 * (int64_t)at + 1] = first == (float)label ? 1.0f : 0.0f;
        }
        for (int k = threadIdx.x; dlogits && k < l.K; k += THREADS)
            put(&dlogits[(int64_t)r * l.K + k],
                (expf(row[k] - best) / (1 + others) - wanted(l, k == label)) * scale);
    }
}

void cuda_class_loss(const struct cuda_loss *l, const float *logits,
                     const uint32_t *labels, int context, int from, int rows,
                     void *dlogits, float *losses, cudaStream_t stream)
{
    FOR_TYPE(l->type, LAUNCH(class_loss<T>, blocks_of(rows), THREADS, stream, *l, logits,
                             labels, context, from, rows, (T *)dlogits, losses));
}

static __global__ void class_losses(struct cuda_loss l, const float *losses, int context)
{
    __shared__ double room[THREADS];
    double loss = 0, right = 0;
    for (int64_t i = threadIdx.x; i < (int64_t)l.n * each_of(context); i += THREADS) {
        loss += (double)losses[2 * i];
        right += (double)losses[2 * i + 1];
    }
    loss = block_sum(loss, room);
    right = block_sum(right, room);
    if (threadIdx.x == 0)
        tell(l, loss / each_of(context), right);
}

void cuda_class_losses(const struct cuda_loss *l, const float *losses, int context,
                       cudaStream_t stream)
{
    LAUNCH(class_losses, 1, THREADS, stream, *l, losses, context);
}

template <class T> static __global__ void find_bad(const T *x, int64_t n, float *found)
{
    for (EACH(i, n)) {
        float v = get(x[i]);
        if (v - v != 0) /* several threads may set it */
            atomicExch(found, 1.0f);
    }
}

void cuda_find_bad(const void *x, int64_t n, enum cuda_type type, float *found,
                   cudaStream_t stream)
{
    FOR_TYPE(type,
             LAUNCH(find_bad<T>, blocks_for(n), THREADS, stream, (const T *)x, n, found));
}

static __global__ void finish(const struct cuda_verdict *v, bool skip,
                              struct cuda_scaler *scaler, struct cuda_result *result,
                              uint64_t *updates)
{
    if (threadIdx.x > 0)
        return;
    bool bad = v->head.sums.bad > 0, over = !bad && v->head.sums.skipped > 0;
    result->head = v->head;
    result->loss = v->own;
    *updates += bad || over ? 0 : 1;
    if (skip && bad) {
        result->head.sums.bad = 0;
        result->head.sums.skipped = 1;
    }
    if (scaler && over) {
        scaler->scale *= 0.5f;
        scaler->good = 0;
    } else if (scaler && !bad && ++scaler->good == CUDA_GROW) {
        scaler->scale =
            scaler->scale < CUDA_MOST_SCALE ? 2 * scaler->scale : scaler->scale;
        scaler->good = 0;
    }
    result->loss_scale = scaler ? scaler->scale : 0;
}

void cuda_finish(const struct cuda_verdict *v, bool skip, struct cuda_scaler *scaler,
                 struct cuda_result *result, uint64_t *updates, cudaStream_t stream)
{
    LAUNCH(finish, 1, 32, stream, v, skip, scaler, result, updates);
}
