/* bench/gpu_bare.c MODEL BATCH PRECISION SECONDS [TUNE] - what a step cannot be faster
 * than
 *
 * The engine's own layers put the products of cuDNN and cuBLASLt, there and back, with
 * the algorithms and the memory that they have in a step, and nothing between them, in
 * one graph, which is played again and again. Before that a whole pass fills all of that
 * memory, so that nothing is timed on zeros. A second graph has events between the
 * layers.
 *
 * With TUNE, seconds to measure in, all of it is done once more by the algorithms that
 * ddp-train --tune takes.
 *
 * One line of JSON: the device, the median microseconds of a play, and of each layer; the
 * same under "tuned", with what was chosen.
 */
#include "common/err.h"
#include "common/mem.h"
#include "common/scoped.h"
#include "tests/worker/nn/train_step.h"
#include "worker/cuda/layers_impl.h"
#include "worker/kernels/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PLAYS = 20, MOST_ROUNDS = 1000 };

struct bare {
    struct model *model;
    struct resources memory;
    cudaStream_t stream;
    struct layers *net;
    struct layers_plan *plan;
    struct tuner tuner; /* its choices are the net's */
    float *weights, *grads;
    int batch;
    /* of the layers, forward and backward, in the order in which they are put */
    cudaEvent_t *at; /* [most + 1] */
    struct part {
        const char *layer;
        const char *way;
    } * parts; /* [most] */
    bool noted;
    int nparts, most;
};

static void copy_in(void *to, const void *from, size_t bytes)
{
    if (bytes > 0)
        CUDA(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
}

/* Numbers between -1 and 1. */
static void put_numbers(struct bare *b, void *to, size_t n, enum cuda_type type)
{
    OWNED float *host = xcalloc(n, sizeof *host);
    float *floats = device_alloc(&b->memory, "a bare step", n * sizeof *host);
    for (size_t i = 0; i < n; i++)
        host[i] = 2 * rng_uniform(rng_key(1, 0), i) - 1;
    copy_in(floats, host, n * sizeof *host);
    cuda_narrow(floats, (int64_t)n, type, to, b->stream);
}

/* Weights, an input and a gradient of the outputs. */
static void fill(struct bare *b, struct io_shape io)
{
    size_t n = (size_t)b->batch, image = (size_t)io.C * io.H * io.W;
    size_t bytes = b->model->count * sizeof(float);
    const struct layers_ends ends = layers_ends(b->net);
    copy_in(b->weights, b->model->weights, bytes);
    copy_in(ends.buffers, b->model->buffer_block, b->model->buffer_count * sizeof(float));
    CUDA(cudaDeviceSynchronize());
    layers_refresh(b->net);
    if (b->net->tokens) /* tokens are 0, and the products of the loss give the gradient */
        return;
    put_numbers(b, ends.x, n * image, ends.type);
    put_numbers(b, ends.dy, n * (size_t)io.outputs, ends.type);
}

/* Images of 28x28, or in colours of 32x32; or tokens. -1: there is no such model. */
static int find_io(const char *model, struct io_shape *io, struct ddp_err *err)
{
    struct model_type *type = model_type_find(model, err);
    if (!type)
        return -1;
    *io = type->task == TASK_TOKENS
              ? (struct io_shape){1, 1, type->context, type->vocabulary}
          : strcmp(model, "resnet18") == 0 ? (struct io_shape){3, 32, 32, 10}
                                           : (struct io_shape){1, 28, 28, 10};
    model_type_free(type);
    return 0;
}

static int bare_open(struct bare *b, const char *model, enum precision precision,
                     struct ddp_err *err)
{
    struct io_shape io;
    if (find_io(model, &io, err) < 0)
        return -1;
    struct layers_settings settings = {.max_batch = b->batch, .precision = precision};
    const struct kernels *cpu = kernels_get(NULL, PRECISION_FP32, err);
    b->model = cpu ? model_create(model, io, 1, cpu, err) : NULL;
    if (!b->model)
        return -1;
    model_init(b->model, 1);
    b->most = 2 * b->model->nlayers;
    b->at = xcalloc((size_t)b->most + 1, sizeof(cudaEvent_t));
    b->parts = xcalloc((size_t)b->most, sizeof *b->parts);
    size_t bytes = b->model->count * sizeof(float);
    cuda_doing("cannot use the GPU");
    CUDA(cudaSetDevice(0));
    b->stream = stream_make(&b->memory, false);
    b->weights = device_alloc(&b->memory, "weights", bytes);
    b->grads = device_alloc(&b->memory, "gradients", bytes);
    b->net = layers_create(b->model, settings, b->weights, &b->memory, b->stream);
    b->plan = layers_plan(b->net, b->batch);
    fill(b, io);
    layers_warm_up(b->net, b->batch, b->grads);
    CUDA(cudaStreamSynchronize(b->stream));
    return cuda_outcome(err);
}

/* An event behind the layer, if it is timed. */
static void note_layer(struct bare *b, const char *layer, const char *way)
{
    if (!b->noted)
        return;
    b->parts[b->nparts] = (struct part){layer, way};
    b->nparts++;
    CUDA(cudaEventRecordWithFlags(b->at[b->nparts], b->stream, cudaEventRecordExternal));
}

/* A layer's products. Attention by our own kernels has none. */
static void put_layer(struct bare *b, int i, bool back)
{
    struct layers *net = b->net;
    const struct layer *l = &net->layers[i];
    const struct layer_plan *p = &b->plan->layers[i];
    const struct products *products = layer_ops[l->spec->kind].products;
    enum pass pass = back ? PASS_WEIGHTS : PASS_FORWARD, end = back ? PASSES : pass + 1;
    for (; products && pass < end; pass++) {
        bool ours = l->spec->kind == LAYER_ATTENTION && !p->how[pass].plan;
        if (has_product(l, pass) && !ours)
            products->play(net, l, p, pass);
    }
    note_layer(b, l->spec->name, back ? "backward" : "forward");
}

/* The products of the logits, piece by piece, as layers_token_loss() puts them. */
static void put_logits(struct bare *b)
{
    struct layers *net = b->net;
    const struct layer_plan *plans = &b->plan->layers[net->nlayers];
    int all = b->batch * (int)net->layers[0].rows, rows;
    for (int from = 0; from < all; from += rows) {
        int rest = plans[0].n == 0 || all - from < plans[0].n;
        rows = plans[rest].n;
        for (enum pass pass = PASS_FORWARD; pass < PASSES; pass++)
            linear_rows(net, &net->layers[net->nlayers + rest], &plans[rest], pass,
                        (size_t)from, from > 0);
    }
}

/* All products of a step, on the stream. */
static void put(struct bare *b)
{
    int n = b->net->nlayers;
    b->net->grads = b->grads;
    for (int i = 0; i < n; i++)
        put_layer(b, i, false);
    if (b->net->logits)
        put_logits(b);
    for (int i = n - 1; i >= 0; i--)
        put_layer(b, i, true);
}

/* `first`: an event before all of it, or NULL. NULL: a failure. */
static cudaGraphExec_t record(struct bare *b, cudaEvent_t first)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    if (!CUDA(cudaStreamBeginCapture(b->stream, cudaStreamCaptureModeRelaxed)))
        return NULL;
    if (first)
        CUDA(cudaEventRecordWithFlags(first, b->stream, cudaEventRecordExternal));
    put(b);
    cuda_note(cudaStreamEndCapture(b->stream, &graph)); /* after a failure, too */
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    if (graph)
        cudaGraphDestroy(graph);
    return exec;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Microseconds of a play: the median of rounds. */
static double time_plays(struct bare *b, double seconds)
{
    static double rounds[MOST_ROUNDS];
    cudaGraphExec_t exec = record(b, NULL);
    cudaEvent_t from = event_make(&b->memory, true), to = event_make(&b->memory, true);
    double all = 0;
    int n = 0;
    /* the first two warm up */
    for (int k = -2; k < MOST_ROUNDS && (k < 1 || all < seconds); k++) {
        float ms = 0;
        CUDA(cudaEventRecord(from, b->stream));
        for (int i = 0; i < PLAYS; i++)
            CUDA(cudaGraphLaunch(exec, b->stream));
        CUDA(cudaEventRecord(to, b->stream));
        CUDA(cudaStreamSynchronize(b->stream));
        CUDA(cudaEventElapsedTime(&ms, from, to));
        if (k < 0)
            continue;
        rounds[n++] = (double)ms * 1000 / PLAYS;
        all += (double)ms / 1000;
    }
    qsort(rounds, (size_t)n, sizeof *rounds, by_size);
    CUDA(cudaGraphExecDestroy(exec));
    return rounds[n / 2];
}

/* ---- layer by layer ---- */

static void time_layers(struct bare *b)
{
    for (int i = 0; i <= b->most && !b->at[b->most]; i++)
        b->at[i] = event_make(&b->memory, true);
    b->nparts = 0;
    b->noted = true;
    cudaGraphExec_t exec = record(b, b->at[0]);
    b->noted = false;
    for (int i = 0; i < PLAYS; i++) /* the last one counts */
        CUDA(cudaGraphLaunch(exec, b->stream));
    CUDA(cudaStreamSynchronize(b->stream));
    CUDA(cudaGraphExecDestroy(exec));
}

/* "us":12.3,"layers":{"conv1 forward":4.5,...} */
static int tell_times(struct bare *b, double seconds, struct ddp_err *err)
{
    cuda_doing("a bare step");
    double us = time_plays(b, seconds);
    time_layers(b);
    TRY(cuda_outcome(err));
    printf("\"us\":%.3f,\"layers\":{", us);
    for (int i = 0; i < b->nparts; i++) {
        float ms = 0;
        CUDA(cudaEventElapsedTime(&ms, b->at[i], b->at[i + 1]));
        printf("%s\"%s %s\":%.3f", i ? "," : "", b->parts[i].layer, b->parts[i].way,
               (double)ms * 1000);
    }
    printf("}");
    return cuda_outcome(err);
}

/* Algorithms as ddp-train --tune chooses them. */
static int tune(struct bare *b, double most_seconds, struct ddp_err *err)
{
    b->tuner.left_ns = (int64_t)(1e9 * most_seconds);
    autotune_measure(&b->tuner, b->net, b->batch, b->grads);
    layers_choose(b->net, &b->tuner.choices, b->grads);
    layers_warm_up(b->net, b->batch, b->grads);
    return cuda_outcome(err);
}

static int run(const char *model, int batch, enum precision precision, double seconds,
               double tune_seconds, struct ddp_err *err)
{
    struct bare b = {.batch = batch};
    struct cudaDeviceProp prop;
    TRY(bare_open(&b, model, precision, err));
    CUDA(cudaGetDeviceProperties(&prop, 0));
    TRY(cuda_outcome(err));
    printf("{\"device\":\"%s\",", prop.name);
    if (tell_times(&b, seconds, err) < 0)
        return -1;
    if (tune_seconds > 0) {
        if (tune(&b, tune_seconds, err) < 0)
            return -1;
        OWNED char *chosen = autotune_describe(&b.tuner);
        printf(",\"tuned\":{\"choice\":\"%s\",", chosen);
        if (tell_times(&b, seconds, err) < 0)
            return -1;
        printf("}");
    }
    printf("}\n");
    return 0;
}

int main(int argc, char **argv)
{
    struct ddp_err err;
    int precision = 0, batch = argc == 5 || argc == 6 ? atoi(argv[2]) : 0;
    while (batch > 0 && precision_names[precision] &&
           strcmp(precision_names[precision], argv[3]) != 0)
        precision++;
    if (batch <= 0 || !precision_names[precision]) {
        fprintf(stderr, "usage: bench-gpu_bare MODEL BATCH PRECISION SECONDS [TUNE]\n");
        return 2;
    }
    if (run(argv[1], batch, (enum precision)precision, atof(argv[4]),
            argc == 6 ? atof(argv[5]) : 0, &err) == 0)
        return 0;
    fprintf(stderr, "bench-gpu_bare: %s\n", err.text);
    return 1;
}
