/* worker/cuda/record.c - see engine_impl.h: a step, put on streams that are being
 * recorded; sums.c puts the sums over the ranks on another one beside it
 */
#include "worker/cuda/engine_impl.h"

#include "common/mem.h"
#include "worker/cuda/ranges.h"

#include <math.h>
#include <string.h>

void engine_gather(struct engine *e, int from, int n, bool learn)
{
    static const struct augment as_they_are = {0};
    const uint32_t *which = which_of(e->in);
    struct cuda_map map = layers_input(e->net, n);
    void *x = layers_input_at(e->net);
    if (classifies(e))
        cuda_gather_images(e->in, which, from, map, learn ? e->job.augment : as_they_are,
                           e->as_float, x, e->labels, e->main);
    else
        cuda_gather_floats(e->in, which, from, n, (int)image_bytes(e),
                           e->job.data->shape.outputs, map.type, x, e->targets, e->main);
}

void engine_loss(struct engine *e, int n, const struct cuda_step *in, int batch)
{
    struct cuda_loss l = {.s = in,
                          .batch = batch,
                          .n = n,
                          .K = e->job.data->shape.outputs,
                          .scaler = e->scaler,
                          .head = head_of(e),
                          .own = e->own};
    void *dy = layers_output_grad(e->net, &l.type);
    if (!in)
        dy = NULL;
    if (classifies(e))
        cuda_softmax_loss(&l, layers_output(e->net), e->labels, dy, e->main);
    else
        cuda_mse_loss(&l, layers_output(e->net), e->targets, dy, e->main);
}

/* ---- the optimiser ---- */

/* What one of them does to a piece; m and v are its states there. The formulas' constants
 * are those of worker/optim/optim.c. */
static void put_sgd(struct engine *e, const struct cuda_update *u, float *m, float *v)
{
    cuda_sgd(u, m, e->job.optim->settings.momentum, e->main);
}

static void put_adam(struct engine *e, const struct cuda_update *u, float *m, float *v)
{
    cuda_adam(u, m, v, 0.9f, 0.999f, 1e-8f, e->updates, e->main);
}

static void put_adadelta(struct engine *e, const struct cuda_update *u, float *sq,
                         float *acc)
{
    cuda_adadelta(u, sq, acc, 0.9f, 1e-6f, e->main);
}

static const struct {
    const char *name;
    void (*put)(struct engine *e, const struct cuda_update *u, float *m, float *v);
} optimisers[] = {{"sgd", put_sgd}, {"adam", put_adam}, {"adadelta", put_adadelta}};

static float *state_at(const struct engine *e, int k, size_t at)
{
    return e->states[k] ? e->states[k] + at : NULL;
}

/* This rank's pieces, then everybody's. */
static int put_optimiser(struct engine *e, struct ddp_err *err)
{
    const struct optim *o = e->job.optim;
    size_t which = 0, at = 0;
    while (which < ARRAY_LEN(optimisers) &&
           strcmp(o->type->name, optimisers[which].name) != 0)
        which++;
    if (which == ARRAY_LEN(optimisers))
        return err_set(err, "the cuda engine has no optimizer '%s'", o->type->name);
    for (size_t i = 0; i < e->npieces; at += e->pieces[i++].count) {
        const struct piece *p = &e->pieces[i];
        struct cuda_update u = {.w = e->weights + p->offset,
                                .g = e->grads + p->offset,
                                .n = (int64_t)p->count,
                                .decay = o->settings.decay,
                                .scale = e->scale,
                                .s = e->in,
                                .head = head_of(e)};
        optimisers[which].put(e, &u, state_at(e, 0, at), state_at(e, 1, at));
    }
    int rc = spans_mark(e, TRACE_COMPUTE, "optimizer", err);
    if (rc < 0 || !shares_out(e))
        return rc;
    return sums_gather(e, e->weights, err) < 0
               ? -1
               : spans_mark(e, TRACE_TALK, "weights", err);
}

/* ---- a step ---- */

static int ceil_div(int a, int b)
{
    return (a + b - 1) / b;
}

int engine_batches(const struct engine *e, int mine, int all)
{
    int most = shares_norms(e) ? ceil_div(all, e->size) : mine;
    return ceil_div(most, e->job.batch_size);
}

/* Samples of batch i, of n. */
static int batch_part(const struct engine *e, int n, int i)
{
    int left = n - i * e->job.batch_size;
    return left < 0 ? 0 : left < e->job.batch_size ? left : e->job.batch_size;
}

static int put_batch(struct engine *e, int i, int k, float *grads, struct ddp_err *err)
{
    struct layers_plan *plan = layers_plan(e->net, k, err);
    if (!plan)
        return -1;
    if (k > 0)
        engine_gather(e, i * e->job.batch_size, k, true);
    if (spans_mark(e, TRACE_DATA, "batch", err) < 0 ||
        layers_forward(e->net, plan, e->in, i, err) < 0)
        return -1;
    if (k > 0)
        engine_loss(e, k, e->in, i);
    if (spans_mark(e, TRACE_COMPUTE, "loss", err) < 0)
        return -1;
    return layers_backward(e->net, plan, grads, sums_ready, e, err);
}

/* All of this rank's samples, batch after batch. What a batch of none writes is nothing,
 * into gradients that are that, or are not the step's. */
static int put_batches(struct engine *e, int n, int batches, struct ddp_err *err)
{
    for (int i = 0; i < batches; i++) {
        int k = batch_part(e, n, i);
        e->first = i == 0;
        e->last = i == batches - 1;
        e->none = k == 0;
        if (put_batch(e, i, k, e->first || n == 0 ? e->grads : e->extra, err) < 0)
            return -1;
    }
    return 0;
}

/* The norm of the step's gradients, if anybody wants to know it. */
static int put_norm(struct engine *e, struct ddp_err *err)
{
    const struct engine_job *job = &e->job;
    if (job->clip_norm <= 0 && !job->skip_bad && !e->scaler)
        return 0;
    if (sums_squares(e, err) < 0)
        return -1;
    cuda_judge(e->parts, (float)job->clip_norm, e->scaler, head_of(e), e->scale, e->main);
    return spans_mark(e, TRACE_COMPUTE, "norm", err);
}

static int put_step(struct engine *e, int n, int batches, struct ddp_err *err)
{
    size_t floats = model_param_count(e->job.model);
    e->started = 0;
    if (spans_begin(e, err) < 0)
        return -1;
    if (n == 0) {
        cuda_no_loss(e->in, head_of(e), e->own, e->main);
        if (check_cuda(cudaMemsetAsync(e->grads, 0, floats * sizeof(float), e->main),
                       "a step", err) < 0)
            return -1;
    }
    if (put_batches(e, n, batches, err) < 0)
        return -1;
    if (sums_finish(e, err) < 0 || spans_mark(e, TRACE_COMPUTE, NULL, err) < 0 ||
        put_norm(e, err) < 0 || put_optimiser(e, err) < 0)
        return -1;
    layers_refresh(e->net);
    cuda_finish(head_of(e), e->own, e->job.skip_bad, e->scaler, e->result, e->updates,
                e->main);
    return check_cuda(cudaGetLastError(), "a step", err) < 0
               ? -1
               : spans_mark(e, TRACE_COMPUTE, "finish", err);
}

/* Plans allocate, and nothing may while a graph is being recorded. */
static int make_plan(struct engine *e, int n, struct ddp_err *err)
{
    struct layers_plan *plan = layers_plan(e->net, n, err);
    return plan ? layers_warm_up(e->net, plan, e->grads, err) : -1;
}

static int make_plans(struct engine *e, int n, int batches, struct ddp_err *err)
{
    for (int i = 0; i < batches; i++) {
        if (make_plan(e, batch_part(e, n, i), err) < 0)
            return -1;
    }
    return 0;
}

static int record(struct engine *e, struct graph *g, struct ddp_err *err)
{
    cudaGraph_t graph = NULL;
    const char *what = "recording a step";
    if (make_plans(e, g->n, g->batches, err) < 0 || sums_warm_up(e, err) < 0 ||
        check_cuda(cudaStreamBeginCapture(e->main, cudaStreamCaptureModeThreadLocal),
                   what, err) < 0)
        return -1;
    int rc = put_step(e, g->n, g->batches, err);
    cudaError_t end = cudaStreamEndCapture(e->main, &graph);
    g->spans = spans_end(e);
    if (rc == 0)
        rc = check_cuda(end, what, err);
    if (rc == 0)
        rc = check_cuda(cudaGraphInstantiate(&g->exec, graph, 0), what, err);
    if (rc == 0) /* else the first play would do it */
        rc = check_cuda(cudaGraphUpload(g->exec, e->main), what, err);
    if (graph)
        cudaGraphDestroy(graph);
    return rc;
}

void engine_forget(struct engine *e, struct graph *g)
{
    for (int i = 0; i < SLOTS; i++) { /* a step under way goes on, unwatched */
        if (e->slots[i].spans == g->spans)
            e->slots[i].spans = NULL;
    }
    if (g->exec)
        cudaGraphExecDestroy(g->exec);
    spans_free(g->spans);
    *g = (struct graph){0};
}

const struct graph *engine_graph(struct engine *e, int n, int batches, uint64_t slot,
                                 struct ddp_err *err)
{
    struct graph made = {.n = n, .batches = batches, .turn = e->job.trace ? slot : 0};
    for (int i = 0; i < e->ngraphs; i++) {
        const struct graph *g = &e->graphs[i];
        if (g->n == n && g->batches == batches && g->turn == made.turn)
            return g;
    }
    range_begin(e->job.profile, "record", 0);
    int rc = record(e, &made, err);
    range_end(e->job.profile);
    if (rc < 0) {
        engine_forget(e, &made);
        return NULL;
    }
    int at = e->ngraphs < MAX_GRAPHS ? e->ngraphs++ : MAX_GRAPHS - 1;
    engine_forget(e, &e->graphs[at]);
    e->graphs[at] = made;
    return &e->graphs[at];
}

/* ---- when something has gone wrong ---- */

static int see(struct engine *e, const char *what, struct ddp_err *err)
{
    return check_cuda(cudaEventRecord(e->ready, e->main), what, err) < 0
               ? -1
               : comm_await(e->comm, e->ready, e->job.timeout_ms, what, err);
}

/* The step's batches go forward again: its weights are still there. */
int engine_find_bad(struct engine *e, const struct slot *slot,
                    struct engine_result *result, struct ddp_err *err)
{
    const char *what = "looking for a bad number";
    int n = slot->of.mine, batches = engine_batches(e, n, slot->of.all);
    if (see(e, what, err) < 0 ||
        check_cuda(cudaMemcpyAsync(e->in, slot->in,
                                   sizeof *slot->in + (size_t)n * sizeof(uint32_t),
                                   cudaMemcpyHostToDevice, e->main),
                   what, err) < 0)
        return -1;
    for (int i = 0; i < batches; i++) {
        int k = batch_part(e, n, i);
        float found[LAYERS_PLACES];
        struct layers_plan *plan = layers_plan(e->net, k, err);
        if (!plan)
            return -1;
        if (k > 0)
            engine_gather(e, i * e->job.batch_size, k, true);
        if (layers_forward(e->net, plan, e->in, i, err) < 0)
            return -1;
        const float *at = layers_find_bad(e->net, k, err);
        if (!at || see(e, what, err) < 0 ||
            check_cuda(cudaMemcpy(found, at, sizeof found, cudaMemcpyDeviceToHost), what,
                       err) < 0)
            return -1;
        if (k > 0 && !isfinite(result->loss) && !*result->where)
            result->depth =
                layers_place(e->net, found, result->where, sizeof result->where);
    }
    return 0;
}
