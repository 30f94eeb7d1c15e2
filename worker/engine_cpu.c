/* worker/engine_cpu.c - the engine of the rank's own CPUs (engine.h), on the host's
 * copy of the model
 *
 * Gradients are reduced bucket by bucket during backward; with several batches per
 * step, during the last one's. A step is complete when step() returns.
 */
#include "worker/engine.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/mem.h"
#include "worker/ddp/reducer.h"
#include "worker/ddp/replica.h"
#include "worker/kernels/scratch.h"
#include "worker/pipeline.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

struct engine {
    struct engine_job job;
    struct reducer *reducer;   /* owned; has the gradients */
    struct pipeline *pipeline; /* owned; NULL: one stage */
    struct batch_buf batch;
    float *extra; /* owned: gradients of what is not a step's first (micro-)batch */
    struct ddp_group *norms; /* owned: norms are summed in it; NULL: no sums */
    struct ddp_err norms_err;
    bool norms_failed; /* in this step: norms_err says why */
    bool apart;        /* buffers (running statistics) of the ranks differ since the last
                          averaging */
    char *text;        /* owned */
};

/* ---- open and close ---- */

static void cpu_close(struct engine *e)
{
    if (!e)
        return;
    batch_buf_finish(&e->batch);
    ddp_group_destroy(e->norms);
    pipeline_destroy(e->pipeline);
    reducer_destroy(e->reducer);
    free(e->extra);
    free(e->text);
    free(e);
}

static void describe(struct engine *e)
{
    const struct engine_job *job = &e->job;
    OWNED char *stages =
        e->pipeline ? pipeline_describe(job->model, job->how.stages) : NULL;
    e->text = xasprintf("%s, %d thread%s per rank%s%s", job->kernels->name,
                        job->how.threads, job->how.threads == 1 ? "" : "s",
                        stages ? ", stages " : "", stages ? stages : "");
}

/* Layers cannot report errors: they are kept until the end of the step. */
static void sum_norms(double *v, size_t n, void *arg)
{
    struct engine *e = arg;
    if (!e->norms_failed)
        e->norms_failed =
            ddp_all_reduce(e->norms, v, n, DDP_F64, DDP_SUM, &e->norms_err) < 0;
}

/* A group of its own, so that a norm need not wait for buckets of gradients. `rc`: this
 * rank's outcome so far; none waits here for one that has failed. */
static int share_norms(struct engine *e, int rc, struct ddp_err *err)
{
    if (!engine_shares_norms(&e->job))
        return rc;
    if (rc < 0)
        err_prefix(err, "rank %d", ddp_group_rank(e->job.group));
    TRY(replica_agree(e->job.group, rc, NULL, err));
    TRY(ddp_group_split(e->job.group, 0, 0, &e->norms, err));
    model_share_norms(e->job.model, sum_norms, e);
    return 0;
}

/* What a rank sets up without the others. */
static int make_own(struct engine *e, struct ddp_err *err)
{
    const struct engine_job *job = &e->job;
    struct reducer_settings settings = job->buckets;
    settings.trace = job->trace;
    if (job->how.accumulate == 1 && job->how.stages == 1)
        settings.factors = job->model;
    e->reducer = reducer_create(job->group, job->model, settings, err);
    if (!e->reducer)
        return -1;
    job->model->dropout = job->how.dropout;
    if (job->how.accumulate > 1 || job->how.stages > 1)
        e->extra = scratch(job->model->count);
    if (job->how.stages > 1) {
        e->pipeline = pipeline_create(job->model, job->how.batch_size, job->how.micro,
                                      job->how.threads, e->extra, err);
        if (!e->pipeline)
            return -1;
    }
    batch_buf_init(&e->batch, job->data, job->how.batch_size);
    return 0;
}

static struct engine *cpu_open(const struct engine_job *job, struct ddp_err *err)
{
    if (job->how.precision != job->kernels->precision) {
        err_set(err, "the engine 'cpu' has no --precision %s, it has fp32 and bf16",
                precision_names[job->how.precision]);
        return NULL;
    }
    struct engine *e = xcalloc(1, sizeof *e);
    e->job = *job;
    if (share_norms(e, make_own(e, err), err) < 0) {
        cpu_close(e);
        return NULL;
    }
    describe(e);
    return e;
}

static struct engine_info cpu_info(const struct engine *e)
{
    return (struct engine_info){.text = e->text, .buckets = reducer_buckets(e->reducer)};
}

/* ---- a step ---- */

/* One without samples takes part in the norms. */
static struct batch_result run_batch(struct engine *e, const struct model_pass *pass)
{
    struct model *m = e->job.model;
    struct batch_result r = {0};
    if (e->pipeline)
        return pipeline_step(e->pipeline, pass);
    model_pass_forward(m, pass, 0, m->nlayers);
    if (pass->batch->n > 0)
        r.loss = model_pass_loss(m, pass, &r.correct);
    r.bad = isfinite(r.loss) ? NULL : m;
    model_pass_back(m, pass, 0, m->nlayers);
    return r;
}

/* Batch i of this rank's step: samples which[0..n). */
static void take_batch(struct engine *e, const struct engine_step *s, int i, bool last,
                       const uint32_t *which, int n, struct engine_result *result)
{
    const struct engine_job *job = &e->job;
    struct augment how = job->how.augment;
    how.key = s->augment_key;
    int64_t began = now_ns();
    struct batch b =
        dataset_gather(job->data, &job->data->train, &how, which, n, &e->batch);
    trace_span(job->trace, TRACE_DATA, "batch", 0, began, now_ns());
    struct model_pass pass = {.batch = &b,
                              .scale = (float)n / (float)s->all,
                              .smooth = job->how.label_smoothing,
                              .seed = s->dropout_seed,
                              .draw = s->dropout_draw + (uint64_t)i * DROPOUT_MICRO,
                              .extra = i == 0 ? NULL : e->extra,
                              .ready = last ? reducer_ready : NULL,
                              .arg = e->reducer,
                              .trace = job->trace,
                              .row = TRACE_COMPUTE};
    struct batch_result r = run_batch(e, &pass);
    if (n == 0)
        return;
    result->loss += r.loss * (float)n / (float)s->mine;
    result->sums.loss += r.loss * pass.scale;
    result->sums.correct += (float)r.correct;
    if (r.bad && !*result->where)
        result->depth = model_find_bad(r.bad, result->where, sizeof result->where);
}

static void run_batches(struct engine *e, const struct engine_step *s,
                        struct engine_result *result)
{
    int batches = engine_batches(&e->job, s->mine, s->all);
    for (int i = 0, done = 0; i < batches; i++) {
        int n = engine_batch(&e->job, s->mine, i);
        take_batch(e, s, i, i == batches - 1, s->which + done, n, result);
        done += n;
    }
}

static int update(struct engine *e, float lr, struct step_sums *sums, struct ddp_err *err)
{
    const struct engine_job *job = &e->job;
    const struct step_rule how = {.lr = lr,
                                  .by = 1, /* gradients have their share of the loss */
                                  .clip_norm = job->how.clip_norm,
                                  .check = job->how.skip_bad};
    double norm;
    int64_t began = now_ns();
    int rc = reducer_step(e->reducer, job->optim, job->model->weights, &how, &norm, err);
    sums->bad = isfinite(norm) ? 0 : 1;
    trace_span(job->trace, TRACE_COMPUTE, "optimizer", 0, began, now_ns());
    return rc;
}

static int cpu_step(struct engine *e, const struct engine_step *s,
                    struct engine_result *result, struct ddp_err *err)
{
    const struct engine_job *job = &e->job;
    int64_t began = now_ns();
    e->apart = true;
    reducer_forget_states(job->optim);
    *result = (struct engine_result){.of = *s, .sums = engine_told(s->signal)};
    result->of.which = NULL;
    TRY(reducer_begin(e->reducer, s->mine == 0, err));
    e->norms_failed = false;
    run_batches(e, s, result);
    if (e->norms_failed)
        return err_set(err, "%s", e->norms_err.text);
    result->sums.bad = isfinite(result->loss) ? 0 : 1;
    if (reducer_finish(e->reducer, &result->sums, err) < 0 ||
        (result->sums.bad == 0 && update(e, s->lr, &result->sums, err) < 0))
        return -1;
    if (result->sums.bad > 0 && job->how.skip_bad) {
        result->sums.bad = 0;
        result->sums.skipped = 1;
    }
    char what[32];
    snprintf(what, sizeof what, "step %" PRIu64, s->step + 1);
    trace_span(job->trace, TRACE_STEP, what, 0, began, now_ns());
    return 1;
}

static int cpu_drain(struct engine *e, struct engine_result *result, struct ddp_err *err)
{
    bool apart = e->apart;
    e->apart = false;
    return apart ? replica_average(e->job.group, e->job.model, err) : 0;
}

static int cpu_evaluate(struct engine *e, const struct samples *part,
                        const uint32_t *which, int n, float *loss, int *correct,
                        struct ddp_err *err)
{
    struct batch b = dataset_gather(e->job.data, part, NULL, which, n, &e->batch);
    *loss = model_evaluate(e->job.model, &b, correct);
    return 0;
}

/* ---- there is one copy only, but for the optimiser that the ranks share out ---- */

static int cpu_push(struct engine *e, struct ddp_err *err)
{
    reducer_keep_states(e->reducer, e->job.optim);
    return 0;
}

static int cpu_pull(struct engine *e, struct ddp_err *err)
{
    return reducer_gather_states(e->reducer, e->job.optim, err);
}

static struct reducer *cpu_reducer(const struct engine *e)
{
    return e->reducer;
}

const struct engine_type engine_cpu = {
    .name = "cpu",
    .open = cpu_open,
    .close = cpu_close,
    .info = cpu_info,
    .step = cpu_step,
    .drain = cpu_drain,
    .evaluate = cpu_evaluate,
    .push = cpu_push,
    .pull = cpu_pull,
    .reducer = cpu_reducer,
};
