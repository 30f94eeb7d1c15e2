/* worker/cuda/engine_cuda.c - see worker/engine.h: a training step on a GPU as one
 * CUDA graph
 *
 * A step is captured once for each number of samples of all ranks and then replayed:
 * batch, forward, backward, reduction over the ranks, optimiser. The inputs that differ
 * from step to step are one block, copied to the device before it; the results are
 * copied back after it. The host runs one step ahead: it waits for the step before the
 * one it has submitted.
 *
 *     main   | copy in | gather  forward  backward ..... | optimiser | finish | copy out
 *     sums   |                      bucket  bucket  bucket + head    |
 *
 * setup.c decides where the data are stored. ddp_engine is the only symbol that the
 * trainer looks up (worker/engine_find.c).
 */
#include "worker/cuda/engine_impl.h"

#include "common/duration.h"
#include "common/err.h"
#include "worker/cuda/nvtx.h"
#include "worker/ddp/replica.h"

#include <assert.h>
#include <string.h>

/* ---- a step ---- */

/* Gathers samples in the slot's pinned memory and starts the copy; `main` will wait
 * for it. */
static void collect(struct engine *e, struct slot *s, const struct samples *part,
                    const uint32_t *which, int n)
{
    size_t one = input_bytes(e), other = target_bytes(e);
    const char *from = inputs_of(part), *with = targets_of(e, part);
    int64_t began = e->job.trace ? now_ns() : 0;
    char *xs = s->bytes, *ts = s->bytes + most_samples(e) * one;
    if (has_tokens(e))
        tokens_gather(e->job.data, part, which, n, (uint32_t *)xs);
    for (int i = 0; i < n && !has_tokens(e); i++) {
        memcpy(xs + (size_t)i * one, from + which[i] * one, one);
        memcpy(ts + (size_t)i * other, with + which[i] * other, other);
    }
    s->staged_bytes = (size_t)n * (one + other);
    trace_span(e->job.trace, TRACE_COLLECT, "collect", s->staged_bytes, began, now_ns());
    if (s->left)
        CUDA(cudaEventRecord(s->left, e->copies));
    CUDA(cudaMemcpyAsync(s->staged.x, xs, (size_t)n * one, cudaMemcpyHostToDevice,
                         e->copies));
    if (other > 0)
        CUDA(cudaMemcpyAsync(s->staged.t, ts, (size_t)n * other, cudaMemcpyHostToDevice,
                             e->copies));
    CUDA(cudaEventRecord(s->arrived, e->copies));
    CUDA(cudaStreamWaitEvent(first_of(e)->main, s->arrived, 0));
}

/* Copies the samples and numbers of a step, or of a test, to the device. */
static void send_in(struct engine *e, struct slot *s, const struct samples *part,
                    const uint32_t *which, int n)
{
    const struct resident *r = part == &e->job.data->train ? &e->train : &e->test;
    if (!e->resident) {
        r = &s->staged;
        if (n > 0)
            collect(e, s, part, which, n);
    }
    memcpy(which_of(s->in), which, (size_t)n * sizeof *which);
    s->in->in_order = !e->resident;
    s->in->mine = n;
    s->in->x = r->x;
    s->in->t = r->t;
    CUDA(cudaMemcpyAsync(first_of(e)->in, s->in,
                         sizeof *s->in + (size_t)n * sizeof *which,
                         cudaMemcpyHostToDevice, first_of(e)->main));
}

static void put_in_line(struct engine *e, const struct engine_step *step)
{
    NVTX_RANGE("step", step->step + 1);
    struct slot *s = &e->slots[e->given % SLOTS];
    const struct stage *first = first_of(e);
    assert(!s->busy);
    const struct graph *graph = engine_graph(e, step->mine, step->all, e->given % SLOTS);
    if (!graph)
        return;
    spans_anchor(e);
    stage_enter(first);
    cuda_doing("a step");
    *s->in = (struct cuda_step){.lr = step->lr,
                                .share = (float)step->mine / (float)step->all,
                                .told = engine_told(step->signal),
                                .seed = step->dropout_seed,
                                .draw = step->dropout_draw,
                                .augment_key = step->augment_key};
    send_in(e, s, &e->job.data->train, step->which, step->mine);
    engine_put_step(e, graph);
    CUDA(cudaMemcpyAsync(s->result, first->result, sizeof *s->result,
                         cudaMemcpyDeviceToHost, first->main));
    if (!CUDA(cudaEventRecord(s->done, first->main)))
        return;
    s->of = *step;
    s->of.which = NULL;
    s->spans = graph->spans;
    s->busy = true;
    e->apart = true;
    e->given++;
}

static int take_out(struct engine *e, struct engine_result *result, struct ddp_err *err)
{
    struct slot *s = &e->slots[e->taken % SLOTS];
    cuda_doing("step %llu", (unsigned long long)s->of.step + 1);
    {
        NVTX_RANGE("wait for step", s->of.step + 1);
        comm_await(e->comm, s->done, e->job.timeout_ms);
    }
    spans_tell(e, s);
    TRY(cuda_outcome(err));
    *result = (struct engine_result){.of = s->of,
                                     .loss = s->result->loss,
                                     .loss_scale = s->result->loss_scale,
                                     .sums = s->result->head.sums};
    if (result->sums.bad > 0)
        engine_find_bad(e, s, result);
    TRY(cuda_outcome(err));
    s->busy = false;
    e->taken++;
    return 1;
}

static int cuda_take_step(struct engine *e, const struct engine_step *step,
                          struct engine_result *result, struct ddp_err *err)
{
    put_in_line(e, step);
    TRY(cuda_outcome(err));
    return e->given - e->taken < SLOTS ? 0 : take_out(e, result, err);
}

/* Averages the running means and variances over the ranks. */
static int make_alike(struct engine *e, struct ddp_err *err)
{
    if (!e->apart || e->size == 1 || e->job.model->buffer_count == 0)
        return 0;
    e->apart = false;
    cuda_doing("copying the model");
    transfer_buffers(e, TO_HOST);
    TRY(cuda_outcome(err));
    TRY(replica_average(e->job.group, e->job.model, err));
    transfer_buffers(e, TO_DEVICE);
    engine_arrive(e);
    return cuda_outcome(err);
}

static int cuda_drain(struct engine *e, struct engine_result *result, struct ddp_err *err)
{
    return e->given == e->taken ? make_alike(e, err) : take_out(e, result, err);
}

/* ---- the rest of the interface ---- */

/* Runs n of the test's samples, from `from` on; n fits the set. */
static void test_part(struct engine *e, struct slot *s, int from, int n)
{
    const struct stage *last = last_of(e);
    stages_forward(e, from, n, false, 0);
    stages_loss(e, 0, n, NULL, 0, NULL);
    CUDA(cudaMemcpyAsync(&s->result->head, &last->verdict->head, sizeof s->result->head,
                         cudaMemcpyDeviceToHost, last->main));
    CUDA(cudaStreamSynchronize(last->main));
}

static int cuda_evaluate(struct engine *e, const struct samples *part,
                         const uint32_t *which, int n, float *loss, int *correct,
                         struct ddp_err *err)
{
    NVTX_RANGE("evaluate", 0);
    struct slot *s = &e->slots[0];
    assert(e->given == e->taken);
    cuda_doing("a test");
    send_in(e, s, part, which, n);
    *loss = 0;
    *correct = 0;
    for (int done = 0, k; done < n; done += k) {
        k = n - done < e->max_micro ? n - done : e->max_micro;
        test_part(e, s, done, k);
        *loss += s->result->head.sums.loss * (float)k / (float)n;
        *correct += (int)s->result->head.sums.correct;
    }
    stage_enter(first_of(e));
    return cuda_outcome(err);
}

static int cuda_push(struct engine *e, struct ddp_err *err)
{
    transfer_model(e, TO_DEVICE);
    stages_tie(e);
    for (EACH_STAGE(s, e)) {
        stage_enter(s);
        layers_refresh(s->sets[0].net);
    }
    stages_join(e);
    return cuda_outcome(err);
}

static int cuda_pull(struct engine *e, struct ddp_err *err)
{
    NVTX_RANGE("pull", 0);
    transfer_model(e, TO_HOST);
    return cuda_outcome(err);
}

static int cuda_prepare(struct engine *e, int mine, int all, struct ddp_err *err)
{
    TRY(autotune_on_all_ranks(e, mine, engine_batches(&e->job, mine, all), err));
    for (uint64_t slot = 0; slot < SLOTS; slot++)
        engine_graph(e, mine, all, slot);
    CUDA(cudaStreamSynchronize(first_of(e)->main));
    return cuda_outcome(err);
}

static struct engine_info cuda_info(const struct engine *e)
{
    struct engine_info info = {
        .text = e->text, .buckets = e->nbuckets, .tuned = e->tuned ? e->tuned : ""};
    for (int i = 0; i < e->nstages; i++) {
        if (e->stages[i].lane == i)
            info.peak += e->peak;
        info.bytes += device_allocated(&e->memories[i], NULL);
    }
    return info;
}

/* worker/gpu/engine_object.c compares it with its own */
__attribute__((visibility("default"))) extern const char ddp_engine_build[];
const char ddp_engine_build[] = ENGINE_BUILD;
__attribute__((visibility("default"))) extern const struct engine_type ddp_engine;
const struct engine_type ddp_engine = {
    .name = "cuda",
    .probe = engine_probe,
    .open = engine_open,
    .close = engine_close,
    .info = cuda_info,
    .step = cuda_take_step,
    .drain = cuda_drain,
    .evaluate = cuda_evaluate,
    .push = cuda_push,
    .pull = cuda_pull,
    .prepare = cuda_prepare,
};
