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
#include "worker/cuda/nvtx.h"
#include "worker/ddp/replica.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* ---- a step ---- */

/* Gathers samples in the slot's pinned memory and starts the copy; `main` will wait
 * for it. */
static int collect(struct engine *e, struct slot *s, const struct samples *part,
                   const uint32_t *which, int n, struct ddp_err *err)
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
    const char *what = "sending a batch";
    s->staged_bytes = (size_t)n * (one + other);
    trace_span(e->job.trace, TRACE_COLLECT, "collect", s->staged_bytes, began, now_ns());
    if (s->left)
        TRY(check_cuda(cudaEventRecord(s->left, e->copies), what, err));
    TRY(check_cuda(cudaMemcpyAsync(s->staged.x, xs, (size_t)n * one,
                                   cudaMemcpyHostToDevice, e->copies),
                   what, err));
    if (other > 0)
        TRY(check_cuda(cudaMemcpyAsync(s->staged.t, ts, (size_t)n * other,
                                       cudaMemcpyHostToDevice, e->copies),
                       what, err));
    TRY(check_cuda(cudaEventRecord(s->arrived, e->copies), what, err));
    return check_cuda(cudaStreamWaitEvent(first_of(e)->main, s->arrived, 0), what, err);
}

/* Copies the samples and numbers of a step, or of a test, to the device. */
static int send_in(struct engine *e, struct slot *s, const struct samples *part,
                   const uint32_t *which, int n, struct ddp_err *err)
{
    const struct resident *r = part == &e->job.data->train ? &e->train : &e->test;
    if (!e->resident) {
        r = &s->staged;
        if (n > 0)
            TRY(collect(e, s, part, which, n, err));
    }
    memcpy(which_of(s->in), which, (size_t)n * sizeof *which);
    s->in->in_order = !e->resident;
    s->in->mine = n;
    s->in->x = r->x;
    s->in->t = r->t;
    return check_cuda(cudaMemcpyAsync(first_of(e)->in, s->in,
                                      sizeof *s->in + (size_t)n * sizeof *which,
                                      cudaMemcpyHostToDevice, first_of(e)->main),
                      "a step", err);
}

static int put_in_line(struct engine *e, const struct engine_step *step,
                       struct ddp_err *err)
{
    NVTX_RANGE("step", step->step + 1);
    struct slot *s = &e->slots[e->given % SLOTS];
    const struct stage *first = first_of(e);
    assert(!s->busy);
    const struct graph *graph =
        engine_graph(e, step->mine, step->all, e->given % SLOTS, err);
    if (!graph || spans_anchor(e, err) < 0 || stage_enter(first, err) < 0)
        return -1;
    *s->in = (struct cuda_step){.lr = step->lr,
                                .share = (float)step->mine / (float)step->all,
                                .told = engine_told(step),
                                .taken = step->step,
                                .seed = step->dropout_seed,
                                .augment_key = step->augment_key};
    TRY(send_in(e, s, &e->job.data->train, step->which, step->mine, err));
    TRY(engine_put_step(e, graph, err));
    TRY(check_cuda(cudaMemcpyAsync(s->result, first->result, sizeof *s->result,
                                   cudaMemcpyDeviceToHost, first->main),
                   "a step", err));
    TRY(check_cuda(cudaEventRecord(s->done, first->main), "a step", err));
    s->of = *step;
    s->of.which = NULL;
    s->spans = graph->spans;
    s->busy = true;
    e->apart = true;
    e->given++;
    return 0;
}

static int take_out(struct engine *e, struct engine_result *result, struct ddp_err *err)
{
    char what[64];
    struct slot *s = &e->slots[e->taken % SLOTS];
    snprintf(what, sizeof what, "step %llu", (unsigned long long)s->of.step + 1);
    {
        NVTX_RANGE("wait for step", s->of.step + 1);
        TRY(comm_await(e->comm, s->done, e->job.timeout_ms, what, err));
    }
    TRY(spans_tell(e, s, err));
    *result = (struct engine_result){.of = s->of,
                                     .loss = s->result->loss,
                                     .loss_scale = s->result->loss_scale,
                                     .sums = s->result->head.sums};
    if (result->sums.bad > 0)
        TRY(engine_find_bad(e, s, result, err));
    s->busy = false;
    e->taken++;
    return 1;
}

static int cuda_take_step(struct engine *e, const struct engine_step *step,
                          struct engine_result *result, struct ddp_err *err)
{
    TRY(put_in_line(e, step, err));
    return e->given - e->taken < SLOTS ? 0 : take_out(e, result, err);
}

/* Averages the running means and variances over the ranks. */
static int make_alike(struct engine *e, struct ddp_err *err)
{
    size_t buffers;
    model_buffer_block(e->job.model, &buffers);
    if (!e->apart || e->size == 1 || buffers == 0)
        return 0;
    e->apart = false;
    TRY(transfer_buffers(e, TO_HOST, err));
    TRY(replica_average(e->job.group, e->job.model, err));
    TRY(transfer_buffers(e, TO_DEVICE, err));
    return engine_arrive(e, "copying the model", err);
}

static int cuda_drain(struct engine *e, struct engine_result *result, struct ddp_err *err)
{
    return e->given == e->taken ? make_alike(e, err) : take_out(e, result, err);
}

/* ---- the rest of the interface ---- */

/* Runs n of the test's samples, from `from` on; n fits the set. */
static int test_part(struct engine *e, struct slot *s, int from, int n,
                     struct ddp_err *err)
{
    const struct stage *last = last_of(e);
    TRY(stages_forward(e, from, n, false, 0, err));
    TRY(stages_loss(e, 0, n, NULL, 0, NULL, err));
    TRY(check_launches("a test", err));
    TRY(check_cuda(cudaMemcpyAsync(&s->result->head, head_of(last),
                                   sizeof s->result->head, cudaMemcpyDeviceToHost,
                                   last->main),
                   "a test", err));
    return check_cuda(cudaStreamSynchronize(last->main), "a test", err);
}

static int cuda_evaluate(struct engine *e, const struct samples *part,
                         const uint32_t *which, int n, float *loss, int *correct,
                         struct ddp_err *err)
{
    NVTX_RANGE("evaluate", 0);
    struct slot *s = &e->slots[0];
    assert(e->given == e->taken);
    TRY(send_in(e, s, part, which, n, err));
    *loss = 0;
    *correct = 0;
    for (int done = 0, k; done < n; done += k) {
        k = n - done < e->max_micro ? n - done : e->max_micro;
        TRY(test_part(e, s, done, k, err));
        *loss += s->result->head.sums.loss * (float)k / (float)n;
        *correct += (int)s->result->head.sums.correct;
    }
    return stage_enter(first_of(e), err);
}

static int cuda_push(struct engine *e, struct ddp_err *err)
{
    TRY(transfer_model(e, TO_DEVICE, err));
    TRY(stages_tie(e, err));
    for (int i = 0; i < e->nstages; i++) {
        TRY(stage_enter(&e->stages[i], err));
        layers_refresh(e->stages[i].sets[0].net);
    }
    TRY(check_launches("copying the model", err));
    return stages_join(e, err);
}

static int cuda_pull(struct engine *e, struct ddp_err *err)
{
    NVTX_RANGE("pull", 0);
    return transfer_model(e, TO_HOST, err);
}

static int cuda_prepare(struct engine *e, int mine, int all, struct ddp_err *err)
{
    TRY(autotune_on_all_ranks(e, mine, engine_batches(&e->job, mine, all), err));
    for (uint64_t slot = 0; slot < SLOTS; slot++) {
        if (!engine_graph(e, mine, all, slot, err))
            return -1;
    }
    return check_cuda(cudaStreamSynchronize(first_of(e)->main), "recording a step", err);
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
