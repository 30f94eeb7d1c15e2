/* examples/network_cuda.cu - the network of network.c with its weights in GPU memory:
 * include/ddprun/ddp.h with options.cuda
 *
 *     ddprun -np 2 build/examples/network_cuda
 *     ddprun -np 2 --max-restarts 1 build/examples/network_cuda kept
 *
 * Backward is one kernel. ready() is called when it has been launched: the library's work
 * on the GPU waits for its end. The program waits only for the loss. The losses are those
 * of network.c.
 */
#include "example.h"
#include "spirals.h"
#include <ddprun/ddp.h>

#include <cuda_runtime_api.h>
#include <string.h>

static struct ddp_param params[NPARAMS];
static cudaStream_t stream;

static void cuda(cudaError_t rc)
{
    if (rc == cudaSuccess)
        return;
    fprintf(stderr, "%s\n", cudaGetErrorString(rc));
    exit(1);
}

static void *allocate(size_t bytes)
{
    void *at;
    cuda(cudaMalloc(&at, bytes));
    return at;
}

/* The stream reads host memory later: it must stay as it is. */
static void send(float *device, const float *host, size_t count)
{
    cuda(cudaMemcpyAsync(device, host, count * sizeof *host, cudaMemcpyHostToDevice,
                         stream));
}

/* An array for each parameter. */
struct arrays {
    float *of[NPARAMS];
};

/* The gradients g of the mean loss over points [from, to) at the weights w, and that
 * loss; a thread for each hidden number. */
static __global__ void backward(struct arrays w, struct arrays g, const float *points,
                                int from, int to, float *loss)
{
    __shared__ float products[HIDDEN];
    int h = threadIdx.x;
    float in[2] = {0, 0}, in_bias = 0, out = 0, out_bias = 0, total = 0;
    for (int i = from; i < to; i++) {
        const float *x = points + 2 * i, *row = w.of[IN] + 2 * h, wanted = i % 2;
        float hidden = tanhf(row[0] * x[0] + row[1] * x[1] + w.of[IN_BIAS][h]);
        products[h] = w.of[OUT][h] * hidden;
        __syncthreads();
        float y = w.of[OUT_BIAS][0];
        for (int k = 0; k < HIDDEN; k++)
            y += products[k];
        __syncthreads();
        float off = (1 / (1 + expf(-y)) - wanted) / (to - from);
        float left = off * w.of[OUT][h] * (1 - hidden * hidden);
        total += logf(1 + expf(wanted > 0 ? -y : y)) / (to - from);
        out_bias += off;
        out += off * hidden;
        in_bias += left;
        in[0] += left * x[0];
        in[1] += left * x[1];
    }
    g.of[IN][2 * h] = in[0];
    g.of[IN][2 * h + 1] = in[1];
    g.of[IN_BIAS][h] = in_bias;
    g.of[OUT][h] = out;
    if (h == 0) {
        g.of[OUT_BIAS][0] = out_bias;
        *loss = total;
    }
}

struct loop {
    struct ddp_parallel *parallel;
    struct arrays weights, grads;
    float *points, *loss;
    int rank, size;
};

static void open_gpu(void)
{
    const char *local = getenv("LOCAL_RANK");
    int devices;
    cuda(cudaGetDeviceCount(&devices));
    cuda(cudaSetDevice((local ? atoi(local) : 0) % devices));
    cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
}

/* The library allocates weights and gradients; rank 0's first weights are those of all. */
static struct loop make_loop(struct ddp_group *group)
{
    static float points[POINTS][2], first[NPARAMS][2 * HIDDEN];
    struct loop l = {};
    struct ddp_parallel_options options = {};
    options.optimiser = "adamw";
    options.decay = 0.0001f;
    options.clip_norm = 1;
    options.cuda = true;
    options.cuda_stream = stream;
    for (int i = 0; i < NPARAMS; i++) {
        params[i].name = names[i];
        params[i].count = counts[i];
    }
    l.rank = ddp_group_rank(group);
    l.size = ddp_group_size(group);
    l.parallel = ddp_parallel_create(group, params, NPARAMS, &options, &err);
    check(l.parallel != NULL);
    l.loss = (float *)allocate(sizeof *l.loss);
    l.points = (float *)allocate(sizeof points);
    make_points(points);
    send(l.points, points[0], 2 * POINTS);
    for (int i = 0; i < NPARAMS; i++) {
        l.weights.of[i] = params[i].weight;
        l.grads.of[i] = params[i].grad;
        make_weights(i, first[i]);
        send(params[i].weight, first[i], counts[i]);
    }
    check(ddp_parallel_share(l.parallel, &err) == 0);
    return l;
}

/* The mean loss of all ranks' points [at, at + n), at most BATCH, times n. */
static float take_step(const struct loop *l, int at, int n)
{
    int from = at + n * l->rank / l->size, to = at + n * (l->rank + 1) / l->size;
    struct ddp_step step = {};
    check(ddp_parallel_begin(l->parallel, to - from, &err) == 0);
    if (to > from) {
        backward<<<1, HIDDEN, 0, stream>>>(l->weights, l->grads, l->points, from, to,
                                           l->loss);
        for (int i = NPARAMS; i-- > 0;)
            ddp_parallel_ready(l->parallel, i);
        cuda(cudaMemcpyAsync(&step.loss, l->loss, sizeof *l->loss, cudaMemcpyDeviceToHost,
                             stream));
        cuda(cudaStreamSynchronize(stream));
    }
    check(ddp_parallel_step(l->parallel, 0.02f, &step, &err) == 0);
    return step.loss * step.samples;
}

int main(int argc, char **argv)
{
    bool kept = argc > 1 && strcmp(argv[1], "kept") == 0;
    uint64_t done = 0, epochs = argc > 2 ? strtoull(argv[2], NULL, 10) : 60;
    setvbuf(stdout, NULL, _IOLBF, 0); /* a lost rank has printed its lines */
    struct ddp_group *group = ddp_group_init(NULL, &err);
    check(group != NULL);
    open_gpu();
    struct loop l = make_loop(group);
    if (kept)
        check(ddp_parallel_restore(l.parallel, &done, &err) == 0);
    if (l.rank == 0 && done > 0)
        printf("going on after epoch %llu\n", (unsigned long long)done);
    for (uint64_t epoch = done + 1; epoch <= epochs; epoch++) {
        float total = 0;
        for (int at = 0; at < POINTS; at += BATCH)
            total += take_step(&l, at, at + BATCH < POINTS ? BATCH : POINTS - at) / POINTS;
        if (l.rank == 0 && epoch % 15 == 0)
            printf("epoch %llu: loss %.3g\n", (unsigned long long)epoch, total);
        if (kept)
            check(ddp_parallel_keep(l.parallel, epoch, &err) == 0);
    }
    check(ddp_parallel_finish(l.parallel, &err) == 0);
    check(ddp_parallel_check(l.parallel, &err) == 0);
    ddp_parallel_destroy(l.parallel);
    ddp_group_destroy(group);
    return 0;
}
