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
#include "worker/cuda/engine_impl.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

static const char *cuda_describe(const struct engine *e)
{
    return e->text;
}

static size_t cuda_buckets(const struct engine *e)
{
    return e->job.buckets.overlap ? e->nbuckets : 1;
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
    cudaGraphExec_t graph = engine_graph(e, step->mine, err);
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
    if (comm_await(e->comm, s->done, e->job.timeout_ms, what, err) < 0)
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
    engine_gather(e, e->in, which_of(e->in), n);
    if (layers_forward(e->net, plan, NULL, 0, err) < 0)
        return -1;
    engine_loss(e, n, NULL, 0, NULL);
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
    return engine_arrive("copying the model", err);
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
    .probe = engine_probe,
    .open = engine_open,
    .close = engine_close,
    .describe = cuda_describe,
    .buckets = cuda_buckets,
    .step = cuda_take_step,
    .settle = cuda_settle,
    .evaluate = cuda_evaluate,
    .push = cuda_push,
    .pull = cuda_pull,
};
