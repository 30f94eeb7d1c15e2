/* worker/cuda/engine_cuda.c - see worker/engine.h: a step on a GPU, as one graph
 *
 * A step is recorded once for each number of samples and then played: batch, forward,
 * backward, sums over the ranks, optimiser. What differs from step to step comes in a
 * block that is copied in front of it; what it has found out is copied out behind it. The
 * host is always a step ahead: it waits for the step before the one it has handed in.
 *
 *     main   | copy in | gather  forward  backward ..... | optimiser | finish | copy out
 *     sums   |                      bucket  bucket  bucket + head    |
 *
 * The data set lies in the device's memory when it takes less than half of what is free;
 * else each batch is collected on the host, in one of two pinned slots, and travels while
 * the step before it runs.
 *
 * ddp_engine is the only symbol that the trainer looks up; worker/engine_find.c.
 */
#include "worker/cuda/check.h"
#include "worker/cuda/comm.h"
#include "worker/cuda/kernels.h"
#include "worker/cuda/layers.h"
#include "worker/engine.h"

#include "common/mem.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SLOTS = 2, MAX_GRAPHS = 8 };

/* One part of the data on the device, or none of it. */
struct resident {
    uint8_t *pixels, *labels;
    float *inputs, *targets;
};

/* A step between host and device. */
struct slot {
    struct cuda_step *in;       /* pinned; followed by the samples' numbers */
    struct cuda_result *result; /* pinned */
    uint8_t *bytes;             /* pinned: a batch of a data set that is not resident */
    struct resident staged;     /* where it lands */
    cudaEvent_t arrived, done;
    struct engine_step of;
    bool busy; /* its result has not been given out */
};

struct graph {
    int n;
    cudaGraphExec_t exec;
};

struct engine {
    struct engine_job job;
    int rank, size;
    struct device_memory memory;
    cudaStream_t main, sums, copies;
    cudaEvent_t ready, summed; /* between main and sums, while recording */
    struct layers *net;
    struct comm *comm; /* NULL: alone */

    float *weights, *block, *grads; /* block: head and gradients */
    float *extra;                   /* gradients of a batch that is not a step's first */
    float *scale;                   /* of the gradients: clipping */
    double *parts;                  /* of their norm */
    float *states[OPTIM_STATES];
    uint64_t *updates;
    float *as_float, *targets, *own;
    uint8_t *labels;
    struct cuda_step *in; /* device: the step that runs, and its samples */
    struct cuda_result *result;
    struct resident train, test;
    bool resident;

    struct bucket *buckets; /* owned */
    size_t nbuckets, started;
    bool first, last; /* batch of the step that is being recorded */
    struct graph graphs[MAX_GRAPHS];
    int ngraphs;
    struct slot slots[SLOTS];
    uint64_t given, taken; /* steps handed in; results given out */
    char text[200];
};

static struct cuda_head *head_of(const struct engine *e)
{
    return (struct cuda_head *)e->block;
}

static uint32_t *which_of(struct cuda_step *in)
{
    return (uint32_t *)(in + 1);
}

static size_t image_bytes(const struct engine *e)
{
    const struct io_shape *s = &e->job.data->shape;
    return (size_t)s->C * (size_t)s->H * (size_t)s->W;
}

static bool classifies(const struct engine *e)
{
    return e->job.data->task == TASK_CLASSIFY;
}

/* ---- opening ---- */

static int cuda_probe(struct ddp_err *err)
{
    int n = 0;
    if (check_cuda(cudaGetDeviceCount(&n), "no GPU", err) < 0)
        return -1;
    return n > 0 ? 0 : err_set(err, "no GPU: the driver shows none");
}

static int choose_device(struct engine *e, struct ddp_err *err)
{
    int n = 0;
    struct cudaDeviceProp prop;
    if (check_cuda(cudaGetDeviceCount(&n), "no GPU", err) < 0)
        return -1;
    if (n == 0)
        return err_set(err, "no GPU: the driver shows none");
    int device = e->job.local_rank % n;
    if (check_cuda(cudaSetDevice(device), "cannot use the GPU", err) < 0 ||
        check_cuda(cudaGetDeviceProperties(&prop, device), "cannot use the GPU", err) < 0)
        return -1;
    snprintf(e->text, sizeof e->text, "%.100s", prop.name);
    return 0;
}

static int make_streams(struct engine *e, struct ddp_err *err)
{
    cudaStream_t *streams[] = {&e->main, &e->sums, &e->copies};
    cudaEvent_t *events[] = {&e->ready, &e->summed};
    for (size_t i = 0; i < ARRAY_LEN(streams); i++) {
        if (check_cuda(cudaStreamCreateWithFlags(streams[i], cudaStreamNonBlocking),
                       "cannot use the GPU", err) < 0)
            return -1;
    }
    for (size_t i = 0; i < ARRAY_LEN(events); i++) {
        if (check_cuda(cudaEventCreateWithFlags(events[i], cudaEventDisableTiming),
                       "cannot use the GPU", err) < 0)
            return -1;
    }
    return 0;
}

/* A copy from pageable memory returns before it has reached the device, and our streams
 * do not wait for it. */
static int arrive(const char *what, struct ddp_err *err)
{
    return check_cuda(cudaDeviceSynchronize(), what, err);
}

/* Of this rank in a step. */
static size_t most_samples(const struct engine *e)
{
    return (size_t)e->job.batch_size * (size_t)e->job.accumulate;
}

static int make_blocks(struct engine *e, struct ddp_err *err)
{
    size_t floats = model_param_count(e->job.model), batch = (size_t)e->job.batch_size;
    size_t bytes = floats * sizeof(float);
    size_t in = sizeof(struct cuda_step) + most_samples(e) * sizeof(uint32_t);
    size_t outputs = (size_t)e->job.data->shape.outputs;
    if (device_take(&e->memory, "weights", bytes, &e->weights, err) < 0 ||
        device_take(&e->memory, "gradients", CUDA_HEAD * sizeof(float) + bytes, &e->block,
                    err) < 0 ||
        device_take(&e->memory, "steps", sizeof *e->updates, &e->updates, err) < 0 ||
        device_take(&e->memory, "steps", 256 * sizeof(float), &e->as_float, err) < 0 ||
        device_take(&e->memory, "steps", sizeof *e->own, &e->own, err) < 0 ||
        device_take(&e->memory, "steps", sizeof *e->scale, &e->scale, err) < 0 ||
        device_take(&e->memory, "steps", CUDA_PARTS * sizeof *e->parts, &e->parts, err) <
            0 ||
        (e->job.accumulate > 1 &&
         device_take(&e->memory, "gradients", bytes, &e->extra, err) < 0) ||
        device_take(&e->memory, "steps", in, &e->in, err) < 0 ||
        device_take(&e->memory, "steps", sizeof *e->result, &e->result, err) < 0 ||
        device_take(&e->memory, "steps", batch, &e->labels, err) < 0 ||
        device_take(&e->memory, "steps", batch * outputs * sizeof(float), &e->targets,
                    err) < 0)
        return -1;
    e->grads = e->block + CUDA_HEAD;
    for (int k = 0; k < OPTIM_STATES; k++) {
        if (e->job.optim->states[k] &&
            device_take(&e->memory, "optimiser", bytes, &e->states[k], err) < 0)
            return -1;
    }
    float one = 1; /* unless there is clipping */
    if (check_cuda(cudaMemcpy(e->scale, &one, sizeof one, cudaMemcpyHostToDevice),
                   "steps", err) < 0)
        return -1;
    if (check_cuda(cudaMemcpy(e->as_float, e->job.data->as_float, 256 * sizeof(float),
                              cudaMemcpyHostToDevice),
                   "steps", err) < 0)
        return -1;
    return arrive("steps", err);
}

static size_t part_bytes(const struct engine *e, const struct samples *part)
{
    size_t image = image_bytes(e);
    if (classifies(e))
        return part->n * (image + 1);
    return part->n * (image + (size_t)e->job.data->shape.outputs) * sizeof(float);
}

/* `n` samples' room on the device. */
static int take_part(struct engine *e, size_t n, const char *what, struct resident *r,
                     struct ddp_err *err)
{
    size_t image = image_bytes(e), outputs = (size_t)e->job.data->shape.outputs;
    if (classifies(e))
        return device_take(&e->memory, what, n * image, &r->pixels, err) < 0
                   ? -1
                   : device_take(&e->memory, what, n, &r->labels, err);
    return device_take(&e->memory, what, n * image * sizeof(float), &r->inputs, err) < 0
               ? -1
               : device_take(&e->memory, what, n * outputs * sizeof(float), &r->targets,
                             err);
}

static int upload_part(struct engine *e, const struct samples *part, struct resident *r,
                       struct ddp_err *err)
{
    size_t image = image_bytes(e), outputs = (size_t)e->job.data->shape.outputs;
    const char *what = "the data set";
    if (take_part(e, part->n, what, r, err) < 0)
        return -1;
    struct {
        void *to;
        const void *from;
        size_t bytes;
    } copies[] = {{r->pixels, part->pixels, part->n * image},
                  {r->labels, part->labels, part->n},
                  {r->inputs, part->inputs, part->n * image * sizeof(float)},
                  {r->targets, part->targets, part->n * outputs * sizeof(float)}};
    for (size_t i = 0; i < ARRAY_LEN(copies); i++) {
        if (copies[i].to &&
            check_cuda(cudaMemcpy(copies[i].to, copies[i].from, copies[i].bytes,
                                  cudaMemcpyHostToDevice),
                       what, err) < 0)
            return -1;
    }
    return arrive(what, err);
}

/* DDP_GPU_DATA=host keeps the data set out of the device, whatever its size. */
static int place_data(struct engine *e, struct ddp_err *err)
{
    size_t left = 0, all = 0;
    const struct dataset *d = e->job.data;
    const char *wish = getenv("DDP_GPU_DATA");
    if (check_cuda(cudaMemGetInfo(&left, &all), "how much memory is free", err) < 0)
        return -1;
    e->resident = part_bytes(e, &d->train) + part_bytes(e, &d->test) < left / 2 &&
                  !(wish && strcmp(wish, "host") == 0);
    if (!e->resident)
        return 0;
    return upload_part(e, &d->train, &e->train, err) < 0
               ? -1
               : upload_part(e, &d->test, &e->test, err);
}

static int make_slots(struct engine *e, struct ddp_err *err)
{
    size_t batch = most_samples(e);
    size_t outputs = (size_t)e->job.data->shape.outputs;
    size_t sample =
        classifies(e) ? image_bytes(e) + 1 : (image_bytes(e) + outputs) * sizeof(float);
    const char *what = "pinned memory";
    for (int i = 0; i < SLOTS; i++) {
        struct slot *s = &e->slots[i];
        void *in, *result, *bytes = NULL;
        if (check_cuda(cudaMallocHost(&in, sizeof *s->in + batch * sizeof(uint32_t)),
                       what, err) < 0)
            return -1;
        s->in = in;
        if (check_cuda(cudaMallocHost(&result, sizeof *s->result), what, err) < 0)
            return -1;
        s->result = result;
        if (!e->resident) {
            if (check_cuda(cudaMallocHost(&bytes, batch * sample), what, err) < 0)
                return -1;
            s->bytes = bytes;
            if (take_part(e, batch, "batches", &s->staged, err) < 0)
                return -1;
        }
        if (check_cuda(cudaEventCreateWithFlags(&s->arrived, cudaEventDisableTiming),
                       what, err) < 0 ||
            check_cuda(cudaEventCreateWithFlags(&s->done, cudaEventDisableTiming), what,
                       err) < 0)
            return -1;
    }
    return 0;
}

/* What a rank can do before it knows the others. */
static int prepare(struct engine *e, struct ddp_err *err)
{
    size_t nparams;
    const struct engine_job *job = &e->job;
    const struct param *params = model_params(job->model, &nparams);
    struct layers_settings settings = {
        .io = job->data->shape, .max_batch = job->batch_size, .dropout = job->dropout};
    if (choose_device(e, err) < 0 || make_streams(e, err) < 0 || make_blocks(e, err) < 0)
        return -1;
    e->net = layers_create(job->model, settings, e->weights, &e->memory, e->main, err);
    if (!e->net || place_data(e, err) < 0 || make_slots(e, err) < 0)
        return -1;
    e->buckets = xcalloc(nparams, sizeof *e->buckets);
    e->nbuckets = bucket_plan(params, nparams, job->buckets.first_bytes / sizeof(float),
                              job->buckets.cap_bytes / sizeof(float), e->buckets);
    return 0;
}

static void describe(struct engine *e)
{
    size_t n = strlen(e->text);
    snprintf(e->text + n, sizeof e->text - n, ", fp32, %.0f MiB%s%s%s",
             (double)device_taken(&e->memory, NULL) / 0x1p20,
             e->resident ? " with the data" : "", e->comm ? ", " : "",
             e->comm ? comm_version(e->comm) : "");
}

static void cuda_close(struct engine *e)
{
    if (!e)
        return;
    for (int i = 0; i < e->ngraphs; i++) /* they hold on to the communicator */
        cudaGraphExecDestroy(e->graphs[i].exec);
    comm_destroy(e->comm);
    layers_destroy(e->net);
    for (int i = 0; i < SLOTS; i++) {
        struct slot *s = &e->slots[i];
        cudaFreeHost(s->in);
        cudaFreeHost(s->result);
        cudaFreeHost(s->bytes);
        if (s->arrived)
            cudaEventDestroy(s->arrived);
        if (s->done)
            cudaEventDestroy(s->done);
    }
    cudaEvent_t events[] = {e->ready, e->summed};
    cudaStream_t streams[] = {e->main, e->sums, e->copies};
    for (size_t i = 0; i < ARRAY_LEN(events); i++) {
        if (events[i])
            cudaEventDestroy(events[i]);
    }
    for (size_t i = 0; i < ARRAY_LEN(streams); i++) {
        if (streams[i])
            cudaStreamDestroy(streams[i]);
    }
    device_free(&e->memory);
    free(e->buckets);
    free(e);
}

static struct engine *cuda_open(const struct engine_job *job, struct ddp_err *err)
{
    struct engine *e = xcalloc(1, sizeof *e);
    e->job = *job;
    e->rank = ddp_group_rank(job->group);
    e->size = ddp_group_size(job->group);
    int rc = job->kernels->precision == PRECISION_FP32
                 ? prepare(e, err)
                 : err_set(err,
                           "the cuda engine computes in fp32 only, not in %s: leave "
                           "--precision out, or take --engine cpu",
                           precision_names[job->kernels->precision]);
    if (e->size > 1) {
        e->comm = comm_create(job->group, rc, err);
        rc = e->comm ? 0 : -1;
    }
    if (rc < 0) {
        cuda_close(e);
        return NULL;
    }
    describe(e);
    return e;
}

static const char *cuda_describe(const struct engine *e)
{
    return e->text;
}

static size_t cuda_buckets(const struct engine *e)
{
    return e->job.buckets.overlap ? e->nbuckets : 1;
}

/* ---- recording a step ---- */

/* All of the block from where the bucket begins, in the plan's order; the last has the
 * head in front. */
static int sum_bucket(struct engine *e, struct ddp_err *err)
{
    struct bucket b = e->buckets[e->started];
    size_t more = e->started == e->nbuckets - 1 ? CUDA_HEAD : 0;
    e->started++;
    return comm_all_reduce(e->comm, e->grads + b.offset - more, b.count + more, e->sums,
                           err);
}

/* The sums' stream goes on from where main is now. */
static int fork_sums(struct engine *e, struct ddp_err *err)
{
    return check_cuda(cudaEventRecord(e->ready, e->main), "a step", err) < 0
               ? -1
               : check_cuda(cudaStreamWaitEvent(e->sums, e->ready, 0), "a step", err);
}

/* A range of a batch's gradients is final: of the step's, once all batches are in. */
static int gradients_ready(size_t offset, size_t count, void *arg, struct ddp_err *err)
{
    struct engine *e = arg;
    bool forked = false;
    if (!e->first)
        cuda_add(e->grads + offset, e->extra + offset, (int64_t)count, e->main);
    if (!e->comm || !e->job.buckets.overlap || !e->last)
        return 0;
    while (e->started < e->nbuckets - 1 && e->buckets[e->started].offset >= offset) {
        if ((!forked && fork_sums(e, err) < 0) || sum_bucket(e, err) < 0)
            return -1;
        forked = true;
    }
    return 0;
}

static int sum_rest(struct engine *e, struct ddp_err *err)
{
    size_t all = model_param_count(e->job.model);
    if (!e->comm)
        return 0;
    if (fork_sums(e, err) < 0)
        return -1;
    if (!e->job.buckets.overlap &&
        comm_all_reduce(e->comm, e->block, CUDA_HEAD + all, e->sums, err) < 0)
        return -1;
    while (e->job.buckets.overlap && e->started < e->nbuckets) {
        if (sum_bucket(e, err) < 0)
            return -1;
    }
    return check_cuda(cudaEventRecord(e->summed, e->sums), "a step", err) < 0
               ? -1
               : check_cuda(cudaStreamWaitEvent(e->main, e->summed, 0), "a step", err);
}

static void gather(struct engine *e, const struct cuda_step *in, const uint32_t *which,
                   int n)
{
    int len = (int)image_bytes(e);
    if (classifies(e))
        cuda_gather_images(in, which, n, len, e->as_float, layers_input(e->net),
                           e->labels, e->main);
    else
        cuda_gather_floats(in, which, n, len, e->job.data->shape.outputs,
                           layers_input(e->net), e->targets, e->main);
}

static void put_loss(struct engine *e, int n, const struct cuda_step *in, int batch,
                     float *dy)
{
    int outputs = e->job.data->shape.outputs;
    if (classifies(e))
        cuda_softmax_loss(layers_output(e->net), e->labels, dy, n, outputs, in, batch,
                          head_of(e), e->own, e->main);
    else
        cuda_mse_loss(layers_output(e->net), e->targets, dy, n, outputs, in, batch,
                      head_of(e), e->own, e->main);
}

/* The formulas' constants are those of worker/optim/optim.c. */
static int put_optimiser(struct engine *e, struct ddp_err *err)
{
    const struct optim *o = e->job.optim;
    int64_t n = (int64_t)o->n;
    const char *name = o->type->name;
    if (strcmp(name, "sgd") == 0)
        cuda_sgd(e->weights, e->grads, e->states[0], n, o->settings.momentum,
                 o->settings.decay, e->scale, e->in, head_of(e), e->main);
    else if (strcmp(name, "adam") == 0)
        cuda_adam(e->weights, e->grads, e->states[0], e->states[1], n, 0.9f, 0.999f,
                  1e-8f, o->settings.decay, e->updates, e->scale, e->in, head_of(e),
                  e->main);
    else if (strcmp(name, "adadelta") == 0)
        cuda_adadelta(e->weights, e->grads, e->states[0], e->states[1], n, 0.9f, 1e-6f,
                      o->settings.decay, e->scale, e->in, head_of(e), e->main);
    else
        return err_set(err, "the cuda engine has no optimizer '%s'", name);
    return 0;
}

/* All of this rank's samples, batch after batch. */
static int put_batches(struct engine *e, int n, struct ddp_err *err)
{
    for (int done = 0, i = 0, k; done < n; done += k, i++) {
        k = n - done < e->job.batch_size ? n - done : e->job.batch_size;
        struct layers_plan *plan = layers_plan(e->net, k, err);
        e->first = done == 0;
        e->last = done + k == n;
        if (!plan)
            return -1;
        gather(e, e->in, which_of(e->in) + done, k);
        if (layers_forward(e->net, plan, e->in, i, err) < 0)
            return -1;
        put_loss(e, k, e->in, i, layers_output_grad(e->net));
        if (layers_backward(e->net, plan, e->first ? e->grads : e->extra, gradients_ready,
                            e, err) < 0)
            return -1;
    }
    return 0;
}

static int put_step(struct engine *e, int n, struct ddp_err *err)
{
    const struct engine_job *job = &e->job;
    size_t floats = model_param_count(job->model);
    e->started = 0;
    if (n > 0 && put_batches(e, n, err) < 0)
        return -1;
    if (n == 0) {
        cuda_no_loss(e->in, head_of(e), e->own, e->main);
        if (check_cuda(cudaMemsetAsync(e->grads, 0, floats * sizeof(float), e->main),
                       "a step", err) < 0)
            return -1;
    }
    if (sum_rest(e, err) < 0)
        return -1;
    if (job->clip_norm > 0 || job->skip_bad)
        cuda_clip(e->grads, (int64_t)floats, (float)job->clip_norm, e->parts, head_of(e),
                  e->scale, e->main);
    if (put_optimiser(e, err) < 0)
        return -1;
    cuda_finish(head_of(e), e->own, job->skip_bad, e->result, e->updates, e->main);
    return check_cuda(cudaGetLastError(), "a step", err);
}

/* Plans allocate, and nothing may while a graph is being recorded. */
static int make_plans(struct engine *e, int n, struct ddp_err *err)
{
    int whole = n / e->job.batch_size, rest = n % e->job.batch_size;
    if ((whole > 0 && !layers_plan(e->net, e->job.batch_size, err)) ||
        (rest > 0 && !layers_plan(e->net, rest, err)))
        return -1;
    return 0;
}

static cudaGraphExec_t record(struct engine *e, int n, struct ddp_err *err)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    if (make_plans(e, n, err) < 0)
        return NULL;
    if (check_cuda(cudaStreamBeginCapture(e->main, cudaStreamCaptureModeThreadLocal),
                   "recording a step", err) < 0)
        return NULL;
    int rc = put_step(e, n, err);
    cudaError_t end = cudaStreamEndCapture(e->main, &graph);
    if (rc == 0 && check_cuda(end, "recording a step", err) == 0)
        check_cuda(cudaGraphInstantiate(&exec, graph, 0), "recording a step", err);
    if (graph)
        cudaGraphDestroy(graph);
    return exec;
}

/* The graph of a step with n samples; NULL with `err`. */
static cudaGraphExec_t graph_for(struct engine *e, int n, struct ddp_err *err)
{
    for (int i = 0; i < e->ngraphs; i++) {
        if (e->graphs[i].n == n)
            return e->graphs[i].exec;
    }
    cudaGraphExec_t exec = record(e, n, err);
    if (!exec)
        return NULL;
    int at = e->ngraphs < MAX_GRAPHS ? e->ngraphs++ : 1;
    if (e->graphs[at].exec)
        cudaGraphExecDestroy(e->graphs[at].exec);
    e->graphs[at] = (struct graph){n, exec};
    return exec;
}

/* ---- a step ---- */

/* Collect samples in the slot's pinned memory and send them; main will wait for them. */
static int stage(struct engine *e, struct slot *s, const struct samples *part,
                 const uint32_t *which, int n, struct ddp_err *err)
{
    size_t image = image_bytes(e), outputs = (size_t)e->job.data->shape.outputs;
    size_t unit = classifies(e) ? 1 : sizeof(float);
    size_t one = image * unit, other = classifies(e) ? 1 : outputs * unit;
    const uint8_t *from = classifies(e) ? part->pixels : (const uint8_t *)part->inputs;
    const uint8_t *with = classifies(e) ? part->labels : (const uint8_t *)part->targets;
    uint8_t *xs = s->bytes, *ts = s->bytes + most_samples(e) * one;
    void *to = classifies(e) ? (void *)s->staged.pixels : (void *)s->staged.inputs;
    void *beside = classifies(e) ? (void *)s->staged.labels : (void *)s->staged.targets;
    for (int i = 0; i < n; i++) {
        memcpy(xs + (size_t)i * one, from + which[i] * one, one);
        memcpy(ts + (size_t)i * other, with + which[i] * other, other);
        which_of(s->in)[i] = (uint32_t)i;
    }
    const char *what = "sending a batch";
    if (check_cuda(
            cudaMemcpyAsync(to, xs, (size_t)n * one, cudaMemcpyHostToDevice, e->copies),
            what, err) < 0 ||
        check_cuda(cudaMemcpyAsync(beside, ts, (size_t)n * other, cudaMemcpyHostToDevice,
                                   e->copies),
                   what, err) < 0 ||
        check_cuda(cudaEventRecord(s->arrived, e->copies), what, err) < 0)
        return -1;
    return check_cuda(cudaStreamWaitEvent(e->main, s->arrived, 0), what, err);
}

/* Samples and numbers of a step, or of a test, on their way to the device. */
static int send_in(struct engine *e, struct slot *s, const struct samples *part,
                   const uint32_t *which, int n, struct ddp_err *err)
{
    const struct resident *r = part == &e->job.data->train ? &e->train : &e->test;
    if (!e->resident) {
        r = &s->staged;
        if (n > 0 && stage(e, s, part, which, n, err) < 0)
            return -1;
    } else {
        memcpy(which_of(s->in), which, (size_t)n * sizeof *which);
    }
    s->in->mine = n;
    s->in->pixels = r->pixels;
    s->in->labels = r->labels;
    s->in->inputs = r->inputs;
    s->in->targets = r->targets;
    return check_cuda(cudaMemcpyAsync(e->in, s->in,
                                      sizeof *s->in + (size_t)n * sizeof *which,
                                      cudaMemcpyHostToDevice, e->main),
                      "a step", err);
}

static int put_in_line(struct engine *e, const struct engine_step *step,
                       struct ddp_err *err)
{
    struct slot *s = &e->slots[e->given % SLOTS];
    assert(!s->busy);
    cudaGraphExec_t graph = graph_for(e, step->mine, err);
    if (!graph)
        return -1;
    *s->in = (struct cuda_step){.lr = step->lr,
                                .share = (float)step->mine / (float)step->all,
                                .stop = step->stop ? 1 : 0,
                                .interrupted = step->interrupted ? 1 : 0,
                                .warned = step->warned ? 1 : 0,
                                .taken = step->step,
                                .seed = step->dropout_seed};
    if (send_in(e, s, &e->job.data->train, step->which, step->mine, err) < 0 ||
        check_cuda(cudaGraphLaunch(graph, e->main), "a step", err) < 0 ||
        check_cuda(cudaMemcpyAsync(s->result, e->result, sizeof *s->result,
                                   cudaMemcpyDeviceToHost, e->main),
                   "a step", err) < 0 ||
        check_cuda(cudaEventRecord(s->done, e->main), "a step", err) < 0)
        return -1;
    s->of = *step;
    s->of.which = NULL;
    s->busy = true;
    e->given++;
    return 0;
}

static int take_out(struct engine *e, struct engine_result *result, struct ddp_err *err)
{
    char what[64];
    struct slot *s = &e->slots[e->taken % SLOTS];
    snprintf(what, sizeof what, "step %llu", (unsigned long long)s->of.step + 1);
    if (comm_await(e->comm, s->done, what, err) < 0)
        return -1;
    const struct cuda_head *h = &s->result->head;
    *result = (struct engine_result){.of = s->of,
                                     .loss = s->result->loss,
                                     .sums = {.loss = h->loss,
                                              .correct = h->correct,
                                              .bad = h->bad,
                                              .stop = h->stop,
                                              .interrupted = h->interrupted,
                                              .warned = h->warned,
                                              .skipped = h->skipped}};
    s->busy = false;
    e->taken++;
    return 1;
}

static int cuda_take_step(struct engine *e, const struct engine_step *step,
                          struct engine_result *result, struct ddp_err *err)
{
    if (put_in_line(e, step, err) < 0)
        return -1;
    return e->given - e->taken < SLOTS ? 0 : take_out(e, result, err);
}

static int cuda_settle(struct engine *e, struct engine_result *result,
                       struct ddp_err *err)
{
    return e->given == e->taken ? 0 : take_out(e, result, err);
}

/* ---- the rest ---- */

static int cuda_evaluate(struct engine *e, const struct samples *part,
                         const uint32_t *which, int n, float *loss, int *correct,
                         struct ddp_err *err)
{
    struct slot *s = &e->slots[0];
    struct layers_plan *plan = layers_plan(e->net, n, err);
    assert(e->given == e->taken);
    if (!plan || send_in(e, s, part, which, n, err) < 0)
        return -1;
    gather(e, e->in, which_of(e->in), n);
    if (layers_forward(e->net, plan, NULL, 0, err) < 0)
        return -1;
    put_loss(e, n, NULL, 0, NULL);
    if (check_cuda(cudaMemcpyAsync(&s->result->head, e->block, sizeof s->result->head,
                                   cudaMemcpyDeviceToHost, e->main),
                   "a test", err) < 0 ||
        check_cuda(cudaStreamSynchronize(e->main), "a test", err) < 0)
        return -1;
    *loss = s->result->head.loss;
    *correct = (int)s->result->head.correct;
    return 0;
}

enum direction { PUSH, PULL };

static int move(void *device, void *host, size_t bytes, enum direction way,
                struct ddp_err *err)
{
    cudaError_t rc = way == PUSH
                         ? cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice)
                         : cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost);
    return check_cuda(rc, "copying the model", err);
}

static int move_all(struct engine *e, enum direction way, struct ddp_err *err)
{
    struct optim *o = e->job.optim;
    size_t bytes = o->n * sizeof(float);
    if (check_cuda(cudaStreamSynchronize(e->main), "copying the model", err) < 0 ||
        move(e->weights, model_weights(e->job.model), bytes, way, err) < 0 ||
        move(e->updates, &o->steps, sizeof o->steps, way, err) < 0)
        return -1;
    for (int k = 0; k < OPTIM_STATES; k++) {
        if (o->states[k] && move(e->states[k], o->states[k], bytes, way, err) < 0)
            return -1;
    }
    return arrive("copying the model", err);
}

static int cuda_push(struct engine *e, struct ddp_err *err)
{
    return move_all(e, PUSH, err);
}

static int cuda_pull(struct engine *e, struct ddp_err *err)
{
    return move_all(e, PULL, err);
}

__attribute__((visibility("default"))) extern const struct engine_type ddp_engine;
const struct engine_type ddp_engine = {
    .name = "cuda",
    .probe = cuda_probe,
    .open = cuda_open,
    .close = cuda_close,
    .describe = cuda_describe,
    .buckets = cuda_buckets,
    .step = cuda_take_step,
    .settle = cuda_settle,
    .evaluate = cuda_evaluate,
    .push = cuda_push,
    .pull = cuda_pull,
};
