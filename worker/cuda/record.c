/* worker/cuda/record.c - see engine_impl.h: captures a step as a graph
 *
 * stages.c launches the batches on the streams that are captured, sums.c the
 * reductions over the ranks on another stream. With pipeline stages the capture forks
 * to the streams of both devices, and is still one graph.
 */
#include "worker/cuda/engine_impl.h"

#include "common/mem.h"
#include "worker/cuda/nvtx.h"

/* ---- the optimiser ---- */

/* This rank's pieces, then those that all ranks update. */
static int put_optimiser(struct stage *s, struct ddp_err *err)
{
    size_t at = 0;
    for (size_t i = 0; i < s->npieces; at += s->pieces[i++].count) {
        const struct piece *p = &s->pieces[i];
        struct cuda_update u = {.w = place_in(s, s->weights, p->offset),
                                .g = place_in(s, s->grads, p->offset),
                                .nearer = optim_nearer(s->e->job.optim),
                                .n = (int64_t)p->count,
                                .at = p->offset,
                                .nborders = s->e->job.optim->nborders,
                                .borders = s->borders,
                                .scale = scale_of(s),
                                .updates = s->updates,
                                .s = s->in,
                                .head = head_of(s)};
        for (int k = 0; k < OPTIM_STATES; k++)
            u.states[k] = s->states[k] ? s->states[k] + at : NULL;
        cuda_optimise(&u, s->e->job.optim, s->main);
    }
    int rc = spans_computed(s, "optimizer", err);
    if (rc < 0 || !shares_out(s->e))
        return rc;
    TRY(sums_gather(s, s->weights, err));
    return spans_mark(s, TRACE_TALK, "weights", err);
}

/* ---- a step ---- */

/* The norm of the step's gradients, if it is needed. */
static int put_norm(struct engine *e, struct ddp_err *err)
{
    const struct engine_job *job = &e->job;
    struct stage *last = last_of(e);
    if (job->how.clip_norm <= 0 && !job->how.skip_bad && !last->scaler)
        return 0;
    for (int i = 0; i < e->nstages; i++) {
        struct stage *s = &e->stages[i];
        double *at = last->parts + (e->nstages - 1 - i) * CUDA_PARTS;
        TRY(stage_enter(s, err));
        TRY(sums_squares(s, err));
        if (s != last)
            TRY(stage_tell(s, s->parts, last, at, CUDA_PARTS * sizeof *s->parts,
                           offsetof(struct mail, parts), err));
    }
    cuda_judge(last->parts, e->nstages, (float)job->how.clip_norm, last->scaler,
               head_of(last), scale_of(last), last->main);
    return spans_computed(last, "norm", err);
}

/* Sends the step's verdict to the other stages. */
static int put_verdict(struct engine *e, struct ddp_err *err)
{
    struct stage *last = last_of(e);
    for (struct stage *s = first_of(e); s < last; s++) {
        TRY(stage_enter(s, err));
        TRY(stage_tell(last, last->block, s, s->block, VERDICT * sizeof *s->block,
                       offsetof(struct mail, verdict), err));
        TRY(spans_computed(s, NULL, err));
    }
    return 0;
}

static int put_nothing(struct engine *e, struct ddp_err *err)
{
    struct stage *last = last_of(e);
    for (int i = 0; i < e->nstages; i++) {
        struct stage *s = &e->stages[i];
        TRY(stage_enter(s, err));
        TRY(check_cuda(
            cudaMemsetAsync(s->grads, 0, s->part.count * sizeof(float), s->main),
            "a step", err));
    }
    cuda_no_loss(last->in, head_of(last), own_of(last), last->main);
    return stage_enter(first_of(e), err);
}

static int put_sums(struct engine *e, struct ddp_err *err)
{
    for (int i = e->nstages - 1; i >= 0; i--) {
        struct stage *s = &e->stages[i];
        TRY(stage_enter(s, err));
        TRY(sums_finish(s, err));
        TRY(spans_computed(s, NULL, err));
    }
    TRY(put_norm(e, err));
    return put_verdict(e, err);
}

static int put_end(struct stage *s, struct ddp_err *err)
{
    TRY(stage_enter(s, err));
    TRY(put_optimiser(s, err));
    if (s == last_of(s->e))
        TRY(stages_tie(s->e, err));
    layers_refresh(s->sets[0].net);
    cuda_finish(head_of(s), own_of(s), s->e->job.how.skip_bad, s->scaler, s->result,
                s->updates, s->main);
    TRY(stage_launched(s, "a step", err));
    return spans_computed(s, "finish", err);
}

static int put_step(struct engine *e, int n, int batches, struct ddp_err *err)
{
    if (stages_order(e, err) < 0 || spans_begin(e, err) < 0 ||
        (n == 0 && put_nothing(e, err) < 0))
        return -1;
    for (int i = 0; i < e->nstages; i++)
        e->stages[i].started = 0;
    for (int i = 0; i < batches; i++)
        TRY(stages_put_batch(e, i, n, batches, err));
    TRY(put_sums(e, err));
    for (int i = 0; i < e->nstages; i++)
        TRY(put_end(&e->stages[i], err));
    TRY(stages_join(e, err));
    /* the step ends when all stages have */
    return e->nstages > 1 ? spans_computed(first_of(e), NULL, err) : 0;
}

int engine_put_step(struct engine *e, const struct graph *g, struct ddp_err *err)
{
    if (g->exec)
        return check_cuda(cudaGraphLaunch(g->exec, first_of(e)->main), "a step", err);
    return put_step(e, g->n, g->batches, err);
}

/* *sound: the step itself can run; only its capture failed. */
static int record(struct engine *e, struct graph *g, bool *sound, struct ddp_err *err)
{
    cudaGraph_t graph = NULL;
    const struct stage *first = first_of(e);
    const char *what = "recording a step";
    /* relaxed: CUDA loads a kernel at its first launch, which the other modes reject;
     * nothing that they guard against is done here */
    TRY(check_cuda(cudaStreamBeginCapture(first->main, cudaStreamCaptureModeRelaxed),
                   what, err));
    int rc = put_step(e, g->n, g->batches, err);
    cudaError_t end = cudaStreamEndCapture(first->main, &graph);
    g->spans = spans_end(e);
    *sound = rc == 0 || end == cudaErrorStreamCaptureInvalidated;
    if (rc == 0)
        rc = check_cuda(end, what, err);
    if (rc == 0)
        rc = check_cuda(cudaGraphInstantiate(&g->exec, graph,
                                             cudaGraphInstantiateFlagUseNodePriority),
                        what, err);
    if (rc == 0) /* else the first launch would do it */
        rc = check_cuda(cudaGraphUpload(g->exec, first->main), what, err);
    if (graph)
        cudaGraphDestroy(graph);
    return rc;
}

/* Falls back to launching each step without a graph, which is slower. Not with several
 * ranks, since NCCL may have been part of a failed capture, nor for a trace, which
 * needs a graph. */
static int do_without(struct engine *e, struct graph *g, struct ddp_err *why)
{
    struct ddp_err ignored;
    if (e->comm || e->job.trace)
        return -1;
    if (g->exec)
        cudaGraphExecDestroy(g->exec);
    g->exec = NULL;
    check_launches("a step", &ignored); /* clears the errors of the capture */
    if (!e->by_hand)
        xappendf(&e->text, ", steps without a graph (%s)", why->text);
    e->by_hand = true;
    return stage_enter(first_of(e), why);
}

static int make_graph(struct engine *e, struct graph *g, struct ddp_err *err)
{
    NVTX_RANGE("record", 0);
    bool sound = false;
    for (int i = 0; i < g->batches; i++)
        TRY(stages_warm_up(e, engine_batch(&e->job, g->n, i), err));
    TRY(sums_warm_up(e, err));
    TRY(stage_enter(first_of(e), err));
    int rc = record(e, g, &sound, err);
    return rc < 0 && sound ? do_without(e, g, err) : rc;
}

void engine_forget(struct engine *e, struct graph *g)
{
    for (int i = 0; i < SLOTS; i++) { /* a step in flight completes, untraced */
        if (e->slots[i].spans == g->spans)
            e->slots[i].spans = NULL;
    }
    if (g->exec)
        cudaGraphExecDestroy(g->exec);
    spans_free(g->spans);
    *g = (struct graph){0};
}

const struct graph *engine_graph(struct engine *e, int mine, int all, uint64_t slot,
                                 struct ddp_err *err)
{
    struct graph made = {.all = all,
                         .n = mine,
                         .batches = engine_batches(&e->job, mine, all),
                         .turn = e->job.trace ? slot : 0};
    for (int i = 0; i < e->ngraphs; i++) {
        const struct graph *g = &e->graphs[i];
        if (g->all == all && g->turn == made.turn)
            return g;
    }
    if (make_graph(e, &made, err) < 0) {
        engine_forget(e, &made);
        return NULL;
    }
    int at = e->ngraphs < MAX_GRAPHS ? e->ngraphs++ : MAX_GRAPHS - 1;
    engine_forget(e, &e->graphs[at]);
    e->graphs[at] = made;
    return &e->graphs[at];
}
