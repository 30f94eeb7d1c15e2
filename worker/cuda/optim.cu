/* worker/cuda/optim.cu - see kernels.h: the norm of gradients, and the optimisers */
#include "worker/cuda/device.h"

enum { TOGETHER = 4 };

/* Sums of squares. Doubles are slow on most chips, so they are used only where floats
 * overflow or underflow. */
static __device__ inline double squares_of(const float *v)
{
    float sum = 0;
    for (int k = 0; k < TOGETHER; k++)
        sum += v[k] * v[k];
    if (sum > 1e-30f && sum < 1e38f)
        return (double)sum;
    double exact = 0;
    for (int k = 0; k < TOGETHER; k++)
        exact += (double)v[k] * (double)v[k];
    return exact;
}

/* Each block writes its part, then one block adds all parts: always in the same order. */
static __global__ void squares(const float *g, int64_t n, bool more, double *parts)
{
    __shared__ double room[THREADS];
    double sum = 0;
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += TOGETHER * step) {
        float v[TOGETHER];
        for (int k = 0; k < TOGETHER; k++)
            v[k] = i + k * step < n ? g[i + k * step] : 0;
        sum += squares_of(v);
    }
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
                             const struct cuda_scaler *scaler, struct cuda_verdict *v)
{
    __shared__ double room[THREADS];
    double by = scaler ? (double)scaler->scale : 1;
    double mine = 0;
    for (int i = 0; i < blocks; i++)
        mine += parts[i * CUDA_PARTS + threadIdx.x];
    double sum = block_sum(mine, room);
    if (threadIdx.x > 0)
        return;
    double norm = sqrt(sum) / by;
    double fits = most > 0 && norm > (double)most ? (double)most / (norm + 1e-6) : 1;
    v->norm = norm;
    v->scale = (float)(fits / by);
    if (norm - norm == 0)
        return;
    if (by > 1 && !(v->head.sums.bad > 0)) /* a smaller scale may do */
        v->head.sums.skipped = 1;
    else
        v->head.sums.bad += 1;
}

void cuda_judge(const double *parts, int blocks, float most,
                const struct cuda_scaler *scaler, struct cuda_verdict *v,
                cudaStream_t stream)
{
    static_assert((int)CUDA_PARTS == (int)THREADS, "a thread per part");
    LAUNCH(judge, 1, THREADS, stream, parts, blocks, most, scaler, v);
}

template <int V>
static __global__ void scale(const float *from, int64_t n, float by, float *to)
{
    for (EACH(q, n / V)) {
        float v[V];
        load<V>(from + q * V, v);
        for (int k = 0; k < V; k++)
            v[k] *= by;
        store<V>(v, to + q * V);
    }
    for (EACH(i, n % V))
        to[n / V * V + i] = from[n / V * V + i] * by;
}

void cuda_scale(const float *from, int64_t n, float by, float *to, cudaStream_t stream)
{
    if (((uintptr_t)from | (uintptr_t)to) % 16 == 0)
        LAUNCH(scale<4>, blocks_for(n / 4), THREADS, stream, from, n, by, to);
    else
        LAUNCH(scale<1>, blocks_for(n), THREADS, stream, from, n, by, to);
}

/* A piece of the block: n weights, the model's from `at` on, of which those between
 * borders do not decay (optim.h). The average goes `nearer` of the way to them. */
struct piece : cuda_update {
    int64_t n;
    size_t at, nborders;
    float nearer;
};

/* An optimiser: begin() runs in one thread of a block, then step() updates a parameter
 * w with the gradient g and its states. */
struct sgd {
    float momentum;
    static __device__ void begin(const struct piece &u, float *rates)
    {
        rates[0] = u.s->lr;
    }
    __device__ void step(const float *rates, bool, float g, float *w, float *m,
                         float *) const
    {
        g = *m = momentum * *m + g; /* 0 without a momentum */
        *w -= rates[0] * g;
    }
};

struct adam {
    float log_b1, log_b2; /* 1 - b^t = -expm1(t log b) */
    float b1, b2, eps, shrink;
    __device__ void begin(const struct piece &u, float *rates) const
    {
        float t = (float)(*u.updates + 1);
        rates[0] = u.s->lr / -expm1f(t * log_b1);
        rates[1] = sqrtf(-expm1f(t * log_b2));
        rates[2] = 1 - u.s->lr * shrink;
    }
    __device__ void step(const float *rates, bool decays, float g, float *w, float *m,
                         float *v) const
    {
        *m = b1 * *m + (1 - b1) * g;
        *v = b2 * *v + (1 - b2) * g * g;
        float keep = decays ? rates[2] : 1;
        *w = *w * keep - rates[0] * *m / (sqrtf(*v) / rates[1] + eps);
    }
};

struct adadelta {
    float rho, eps;
    static __device__ void begin(const struct piece &u, float *rates)
    {
        rates[0] = u.s->lr;
    }
    __device__ void step(const float *rates, bool, float g, float *w, float *sq,
                         float *acc) const
    {
        *sq = rho * *sq + (1 - rho) * g * g;
        float delta = sqrtf(*acc + eps) / sqrtf(*sq + eps) * g;
        *acc = rho * *acc + (1 - rho) * delta * delta;
        *w -= rates[0] * delta;
    }
};

/* Updates V parameters from i on. *passed: how many borders are before them, or fewer. It
 * only rises, since a thread walks upwards: that takes no search. */
template <int V, class O>
static __device__ inline void update(const struct piece &u, const O &o,
                                     const float *rates, float scale, float decay,
                                     int64_t i, size_t *passed)
{
    float w[V], g[V], states[OPTIM_STATES][V] = {};
    load<V>(u.w + i, w);
    load<V>(u.g + i, g);
#pragma unroll
    for (int s = 0; s < OPTIM_STATES; s++)
        if (u.states[s])
            load<V>(u.states[s] + i, states[s]);
    for (int k = 0; k < V; k++) {
        float *e = &states[OPTIM_AVERAGE][k];
        while (*passed < u.nborders && u.borders[*passed] <= u.at + (size_t)(i + k))
            ++*passed;
        bool decays = *passed % 2 == 0;
        o.step(rates, decays, g[k] * scale + (decays ? decay : 0) * w[k], &w[k],
               &states[0][k], &states[1][k]);
        *e = rates[3] < 1 ? *e + rates[3] * (w[k] - *e) : w[k];
    }
    store<V>(w, u.w + i);
#pragma unroll
    for (int s = 0; s < OPTIM_STATES; s++)
        if (u.states[s])
            store<V>(states[s], u.states[s] + i);
}

template <int V, class O>
static __global__ void optimise(struct piece u, O o, float decay)
{
    __shared__ float rates[4];
    const struct step_sums &sums = u.verdict->head.sums;
    if (sums.bad > 0 || sums.skipped > 0)
        return;
    if (threadIdx.x == 0) {
        o.begin(u, rates);
        rates[3] = *u.updates > 0 ? u.nearer : 1;
    }
    __syncthreads();
    float scale = u.verdict->scale;
    size_t passed = 0;
    for (EACH(q, u.n / V))
        update<V>(u, o, rates, scale, decay, q * V, &passed);
    for (EACH(i, u.n % V))
        update<1>(u, o, rates, scale, decay, u.n / V * V + i, &passed);
}

template <class O>
static void put_optimiser(const struct piece &u, O o, float decay, cudaStream_t stream)
{
    uintptr_t lies = (uintptr_t)u.w | (uintptr_t)u.g | (uintptr_t)u.states[0] |
                     (uintptr_t)u.states[1] |
                     (uintptr_t)u.states[2]; /* a rank's piece may begin anywhere */
    if (lies % 16 == 0)
        LAUNCH((optimise<4, O>), blocks_for(u.n / 4), THREADS, stream, u, o, decay);
    else
        LAUNCH((optimise<1, O>), blocks_for(u.n), THREADS, stream, u, o, decay);
}

static struct piece piece_of(const struct cuda_update *block, const struct optim *o,
                             size_t at, size_t n, size_t state)
{
    struct piece u;
    static_cast<struct cuda_update &>(u) = *block;
    u.w += at;
    u.g += at;
    for (int k = 0; k < OPTIM_STATES; k++)
        u.states[k] = u.states[k] ? u.states[k] + state : NULL;
    u.n = (int64_t)n;
    u.at = u.first + at;
    u.nborders = o->nborders;
    u.nearer = o->nearer;
    return u;
}

void cuda_optimise(const struct cuda_update *block, const struct optim *by, size_t at,
                   size_t n, size_t state, cudaStream_t stream)
{
    struct piece u = piece_of(block, by, at, n, state);
    float decay = by->penalty, b1 = by->b1, b2 = by->b2, eps = by->type->eps;
    float log_b1 = (float)log((double)b1), log_b2 = (float)log((double)b2);
    switch (by->type->rule) {
    case RULE_SGD:
        put_optimiser(u, sgd{b1}, decay, stream);
        break;
    case RULE_ADAM:
        put_optimiser(u, adam{log_b1, log_b2, b1, b2, eps, by->shrink}, decay,
                      stream);
        break;
    case RULE_ADADELTA:
        put_optimiser(u, adadelta{b1, eps}, decay, stream);
        break;
    }
}
