/* worker/cuda/optim.cu - see kernels.h: the norm of gradients, and what they do to
 * weights
 */
#include "worker/cuda/device.h"

/* Each block its part, then one block all parts: the same order every time. */
static __global__ void squares(const float *g, int64_t n, bool more, double *parts)
{
    __shared__ double room[THREADS];
    double sum = 0;
    for (EACH(i, n))
        sum += (double)g[i] * (double)g[i];
    sum = block_sum(sum, room);
    if (threadIdx.x == 0)
        parts[blockIdx.x] = sum + (more ? parts[blockIdx.x] : 0);
}

void cuda_squares(const float *g, int64_t n, bool more, double *parts,
                  cudaStream_t stream)
{
    LAUNCH(squares, CUDA_PARTS, THREADS, stream, g, n, more, parts);
}

static __global__ void judge(const double *parts, int blocks, float most,
                             const struct cuda_scaler *scaler, struct cuda_head *head,
                             float *scale)
{
    __shared__ double room[THREADS];
    double by = scaler ? (double)scaler->scale : 1;
    double mine = 0;
    for (int i = 0; i < blocks; i++)
        mine += parts[i * CUDA_PARTS + threadIdx.x];
    double norm = sqrt(block_sum(mine, room)) / by;
    if (threadIdx.x > 0)
        return;
    double fits = most > 0 && norm > (double)most ? (double)most / (norm + 1e-6) : 1;
    *scale = (float)(fits / by);
    if (norm - norm == 0)
        return;
    if (by > 1 && !(head->bad > 0)) /* a smaller one may do */
        head->skipped = 1;
    else
        head->bad += 1;
}

void cuda_judge(const double *parts, int blocks, float most,
                const struct cuda_scaler *scaler, struct cuda_head *head, float *scale,
                cudaStream_t stream)
{
    static_assert((int)CUDA_PARTS == (int)THREADS, "a thread per part");
    LAUNCH(judge, 1, THREADS, stream, parts, blocks, most, scaler, head, scale);
}

static __device__ inline bool left_out(const struct cuda_update &u)
{
    return u.head->bad > 0 || u.head->skipped > 0;
}

static __device__ inline float gradient(const struct cuda_update &u, int64_t i,
                                        float scale)
{
    return u.g[i] * scale + u.decay * u.w[i];
}

static __global__ void sgd(struct cuda_update u, float *m, float momentum)
{
    if (left_out(u))
        return;
    float lr = u.s->lr, scale = *u.scale;
    for (EACH(i, u.n)) {
        float d = gradient(u, i, scale);
        if (m)
            d = m[i] = momentum * m[i] + d;
        u.w[i] -= lr * d;
    }
}

void cuda_sgd(const struct cuda_update *given, float *m, float momentum,
              cudaStream_t stream)
{
    struct cuda_update u = *given;
    LAUNCH(sgd, blocks_for(u.n), THREADS, stream, u, m, momentum);
}

static __global__ void adam(struct cuda_update u, float *m, float *v, float b1, float b2,
                            float eps, const uint64_t *updates)
{
    if (left_out(u))
        return;
    double t = (double)(*updates + 1);
    float rate = (float)((double)u.s->lr / (1 - pow((double)b1, t)));
    float root2 = (float)sqrt(1 - pow((double)b2, t)), scale = *u.scale;
    for (EACH(i, u.n)) {
        float d = gradient(u, i, scale);
        m[i] = b1 * m[i] + (1 - b1) * d;
        v[i] = b2 * v[i] + (1 - b2) * d * d;
        u.w[i] -= rate * m[i] / (sqrtf(v[i]) / root2 + eps);
    }
}

void cuda_adam(const struct cuda_update *given, float *m, float *v, float b1, float b2,
               float eps, const uint64_t *updates, cudaStream_t stream)
{
    struct cuda_update u = *given;
    LAUNCH(adam, blocks_for(u.n), THREADS, stream, u, m, v, b1, b2, eps, updates);
}

static __global__ void adadelta(struct cuda_update u, float *sq, float *acc, float rho,
                                float eps)
{
    if (left_out(u))
        return;
    float lr = u.s->lr, scale = *u.scale;
    for (EACH(i, u.n)) {
        float d = gradient(u, i, scale);
        sq[i] = rho * sq[i] + (1 - rho) * d * d;
        float delta = sqrtf(acc[i] + eps) / sqrtf(sq[i] + eps) * d;
        acc[i] = rho * acc[i] + (1 - rho) * delta * delta;
        u.w[i] -= lr * delta;
    }
}

void cuda_adadelta(const struct cuda_update *given, float *sq, float *acc, float rho,
                   float eps, cudaStream_t stream)
{
    struct cuda_update u = *given;
    LAUNCH(adadelta, blocks_for(u.n), THREADS, stream, u, sq, acc, rho, eps);
}
