/* examples/network_cuda.cu - the network of network.c with its weights in GPU memory:
 * include/ddprun/ddp.h with options.cuda
 *
 *     ddprun -np 2 build/examples/network_cuda
 *     ddprun -np 2 --max-restarts 1 build/examples/network_cuda kept
 *
 * Backward is one kernel. ready() is called when it has been launched, not when it has
 * ended: the library's work on the GPU waits for it, and the program for none of both
 * until it reads the loss. The losses are those of network.c.
 */
#include "example.h"
#include <ddprun/ddp.h>

#include <cuda_runtime_api.h>
#include <math.h>
#include <string.h>

enum { POINTS = 500, BATCH = 64, HIDDEN = 48 };
enum { IN, IN_BIAS, OUT, OUT_BIAS, NPARAMS };
static const char *const names[] = {"in.weight", "in.bias", "out.weight", "out.bias"};
static const size_t counts[] = {2 * HIDDEN, HIDDEN, HIDDEN, 1};
static struct ddp_param params[NPARAMS];
static cudaStream_t stream;

static void cuda(cudaError_t rc)
{
    if (rc == cudaSuccess)
        return;
    fprintf(stderr, "%s\n", cudaGetErrorString(rc));
    exit(1);
}

/* The same on every rank and machine: not the C library's generator. */
static float draw(void)
{
    static unsigned seed = 42;
    seed = seed * 1664525u + 1013904223u;
    return (float)(seed >> 8) / (1 << 24);
}

/* On the GPU. */
static float *make_points(void)
{
    static float points[POINTS][2];
    float *at;
    for (int i = 0; i < POINTS; i++) {
        float turn = 0.3f + 6 * draw(), angle = turn + (i % 2 ? 3.14159f : 0);
        points[i][0] = turn / 6 * cosf(angle) + 0.03f * draw();
        points[i][1] = turn / 6 * sinf(angle) + 0.03f * draw();
    }
    cuda(cudaMalloc((void **)&at, sizeof points));
    cuda(cudaMemcpyAsync(at, points, sizeof points, cudaMemcpyHostToDevice, stream));
    return at;
}

static void make_weights(void)
{
    static float first[NPARAMS][2 * HIDDEN];
    for (int i = 0; i < NPARAMS; i++) {
        for (size_t k = 0; k < params[i].count; k++)
            first[i][k] = (draw() - 0.5f) * (i == IN ? 4 : 1);
        cuda(cudaMemcpyAsync(params[i].weight, first[i], params[i].count * sizeof(float),
                             cudaMemcpyHostToDevice, stream));
    }
}

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

int main(int argc, char **argv)
{
    struct ddp_parallel_options options = {};
    struct arrays weights, grads;
    float *points, *loss;
    int devices;
    bool kept = argc > 1 && strcmp(argv[1], "kept") == 0;
    uint64_t done = 0, epochs = argc > 2 ? strtoull(argv[2], NULL, 10) : 60;
    setvbuf(stdout, NULL, _IOLBF, 0); /* a lost rank has printed its lines */
    struct ddp_group *group = ddp_group_init(NULL, &err);
    check(group != NULL);
    int rank = ddp_group_rank(group), size = ddp_group_size(group);
    const char *local = getenv("LOCAL_RANK");
    cuda(cudaGetDeviceCount(&devices));
    cuda(cudaSetDevice((local ? atoi(local) : 0) % devices));
    cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    cuda(cudaMalloc((void **)&loss, sizeof *loss));
    options.optimiser = "adamw";
    options.decay = 0.0001f;
    options.clip_norm = 1;
    options.cuda = true;
    options.cuda_stream = stream;
    for (int i = 0; i < NPARAMS; i++) {
        params[i].name = names[i];
        params[i].count = counts[i];
    }
    struct ddp_parallel *p = ddp_parallel_create(group, params, NPARAMS, &options, &err);
    check(p != NULL);
    for (int i = 0; i < NPARAMS; i++) {
        weights.of[i] = params[i].weight;
        grads.of[i] = params[i].grad;
    }
    points = make_points();
    if (rank == 0)
        make_weights();
    check(ddp_parallel_share(p, &err) == 0);
    if (kept)
        check(ddp_parallel_restore(p, &done, &err) == 0);
    if (rank == 0 && done > 0)
        printf("going on after epoch %llu\n", (unsigned long long)done);
    for (uint64_t epoch = done + 1; epoch <= epochs; epoch++) {
        float total = 0;
        for (int at = 0; at < POINTS; at += BATCH) {
            int n = at + BATCH < POINTS ? BATCH : POINTS - at;
            int from = at + n * rank / size, to = at + n * (rank + 1) / size;
            struct ddp_step step = {};
            check(ddp_parallel_begin(p, to - from, &err) == 0);
            if (to > from) {
                backward<<<1, HIDDEN, 0, stream>>>(weights, grads, points, from, to,
                                                   loss);
                for (int i = NPARAMS; i-- > 0;)
                    ddp_parallel_ready(p, i);
                cuda(cudaMemcpyAsync(&step.loss, loss, sizeof *loss,
                                     cudaMemcpyDeviceToHost, stream));
                cuda(cudaStreamSynchronize(stream));
            }
            check(ddp_parallel_step(p, 0.02f, &step, &err) == 0);
            total += step.loss * step.samples / POINTS;
        }
        if (rank == 0 && epoch % 15 == 0)
            printf("epoch %llu: loss %.3g\n", (unsigned long long)epoch, total);
        if (kept)
            check(ddp_parallel_keep(p, epoch, &err) == 0);
    }
    check(ddp_parallel_finish(p, &err) == 0);
    check(ddp_parallel_check(p, &err) == 0);
    ddp_parallel_destroy(p);
    ddp_group_destroy(group);
    return 0;
}
