/* worker/cuda/record.c - see engine_impl.h: captures a step as a graph
 *
 * stages.c launches the batches on the streams that are captured, sums.c the
 * reductions over the ranks on another stream. With pipeline stages the capture forks
 * to the streams of both devices, and is still one graph.
 */
#include "worker/cuda/engine_impl.h"

#include "common/mem.h"
#include "worker/cuda/nvtx.h"

#include <string.h>

/* ---- the optimiser ---- */

/* This rank's pieces, then those that all ranks update. */
static void put_optimiser(struct stage *s)
{
    size_t at = 0;
    struct cuda_update u = {.w = s->weights,
                            .g = s->grads,
                            .first = s->part.offset,
                            .borders = s->borders,
                            .updates = s->updates,
                            .s = s->in,
                            .verdict = s->verdict};
    memcpy(u.states, s->states, sizeof u.states);
    for (size_t i = 0; i < s->npieces; at += s->pieces[i++].count)
        cuda_optimise(&u, s->e->job.optim, s->pieces[i].offset - u.first,
                      s->pieces[i].count, at, s->main);
    spans_computed(s, "optimizer");
    if (!shares_out(s->e))
        return;
    sums_gather(s, s->weights);
    spans_mark(s, TRACE_TALK, "weights");
}

/* ---- a step ---- */

/* The norm of the step's gradients, if it is needed. */
static void put_norm(struct engine *e)
{
    const struct engine_job *job = &e->job;
    struct stage *last = last_of(e);
    if (job->how.clip_norm <= 0 && !job->how.skip_bad && !last->scaler)
        return;
    for (EACH_STAGE(s, e)) {
        double *at = last->parts + (e->nstages - 1 - s->index) * CUDA_PARTS;
        stage_enter(s);
        sums_squares(s);
        if (s != last)
            stage_tell(s, s->parts, last, at, CUDA_PARTS * sizeof *s->parts,
                       offsetof(struct mail, parts));
    }
    cuda_judge(last->parts, e->nstages, (float)job->how.clip_norm, last->scaler,
               last->verdict, last->main);
    spans_computed(last, "norm");
}

/* Sends the step's verdict to the other stages. */
static void put_verdict(struct engine *e)
{
    struct stage *last = last_of(e);
    for (struct stage *s = first_of(e); s < last; s++) {
        stage_enter(s);
        stage_tell(last, last->verdict, s, s->verdict, sizeof *s->verdict,
                   offsetof(struct mail, verdict));
        spans_computed(s, NULL);
    }
}

static void put_nothing(struct engine *e)
{
    struct stage *last = last_of(e);
    for (EACH_STAGE(s, e)) {
        stage_enter(s);
        CUDA(cudaMemsetAsync(s->grads, 0, s->part.count * sizeof(float), s->main));
    }
    cuda_class_losses(&(struct cuda_loss){.s = last->in, .verdict = last->verdict}, NULL,
                      0, last->main);
    stage_enter(first_of(e));
}

static void put_sums(struct engine *e)
{
    for (EACH_STAGE_BACK(s, e)) {
        stage_enter(s);
        sums_finish(s);
        spans_computed(s, NULL);
    }
    put_norm(e);
    put_verdict(e);
}

static void put_end(struct stage *s)
{
    stage_enter(s);
    stage_doing(s, "a step");
    put_optimiser(s);
    if (s == last_of(s->e))
        stages_tie(s->e);
    layers_refresh(s->sets[0].net);
    cuda_finish(s->verdict, s->e->job.how.skip_bad, s->scaler, s->result, s->updates,
                s->main);
    spans_computed(s, "finish");
}

static void put_step(struct engine *e, int n, int batches)
{
    stages_order(e);
    spans_begin(e);
    if (n == 0)
        put_nothing(e);
    for (EACH_STAGE(s, e))
        s->started = 0;
    for (int i = 0; i < batches; i++)
        stages_put_batch(e, i, n, batches);
    cuda_doing("a step");
    put_sums(e);
    for (EACH_STAGE(s, e))
        put_end(s);
    stages_join(e);
    /* the step ends when all stages have */
    if (e->nstages > 1)
        spans_computed(first_of(e), NULL);
}

void engine_put_step(struct engine *e, const struct graph *g)
{
    if (g->exec)
        CUDA(cudaGraphLaunch(g->exec, first_of(e)->main));
    else
        put_step(e, g->n, g->batches);
}

/* False: the step itself fails, not only its capture. */
static bool record(struct engine *e, struct graph *g)
{
    cudaGraph_t graph = NULL;
    const struct stage *first = first_of(e);
    cuda_doing("recording a step");
    /* relaxed: CUDA loads a kernel at its first launch, which the other modes reject;
     * nothing that they guard against is done here */
    if (!CUDA(cudaStreamBeginCapture(first->main, cudaStreamCaptureModeRelaxed)))
        return false;
    put_step(e, g->n, g->batches);
    cudaError_t end =
        cudaStreamEndCapture(first->main, &graph); /* after a failure, too */
    bool sound = !cuda_failed() || end == cudaErrorStreamCaptureInvalidated;
    g->spans = spans_end(e);
    cuda_doing("recording a step");
    cuda_note(end);
    CUDA(cudaGraphInstantiate(&g->exec, graph, cudaGraphInstantiateFlagUseNodePriority));
    CUDA(cudaGraphUpload(g->exec, first->main)); /* else the first launch would do it */
    if (graph)
        cudaGraphDestroy(graph);
    return sound;
}

/* After a failed capture: launches each step without a graph, which is slower. Not with
 * several ranks, since NCCL may have been part of the capture, nor for a trace, which
 * needs a graph. */
static void do_without(struct engine *e, struct graph *g)
{
    struct ddp_err why;
    if (e->comm || e->job.trace || cuda_outcome(&why) == 0)
        return;
    if (g->exec)
        cudaGraphExecDestroy(g->exec);
    g->exec = NULL;
    cudaGetLastError(); /* the capture's */
    if (!e->by_hand)
        xappendf(&e->text, ", steps without a graph (%s)", why.text);
    e->by_hand = true;
    stage_enter(first_of(e));
}

static void make_graph(struct engine *e, struct graph *g)
{
    NVTX_RANGE("record", 0);
    for (int i = 0; i < g->batches; i++)
        stages_warm_up(e, engine_batch(&e->job, g->n, i));
    sums_warm_up(e);
    stage_enter(first_of(e));
    if (record(e, g))
        do_without(e, g);
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

const struct graph *engine_graph(struct engine *e, int mine, int all, uint64_t slot)
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
    make_graph(e, &made);
    if (cuda_failed()) {
        engine_forget(e, &made);
        return NULL;
    }
    int at = e->ngraphs < MAX_GRAPHS ? e->ngraphs++ : MAX_GRAPHS - 1;
    engine_forget(e, &e->graphs[at]);
    e->graphs[at] = made;
    return &e->graphs[at];
}
