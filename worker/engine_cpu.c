/* worker/engine_cpu.c - see engine.h: the rank's own CPUs, on the host's copy of the
 * model
 *
 * Gradients are reduced bucket by bucket while backward goes on. A step is over when
 * step() returns.
 */
#include "worker/engine.h"

#include "common/err.h"
#include "common/mem.h"
#include "worker/ddp/reducer.h"
#include "worker/ddp/replica.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

struct engine {
    struct engine_job job;
    struct reducer *reducer; /* owned; has the gradients */
    struct batch_buf batch;
    bool apart; /* the ranks' buffers: steps were taken since they were made alike */
    char text[64];
};

static int cpu_probe(struct ddp_err *err)
{
    return 0;
}

static void cpu_close(struct engine *e)
{
    if (!e)
        return;
    batch_buf_finish(&e->batch);
    reducer_destroy(e->reducer);
    free(e);
}

static struct engine *cpu_open(const struct engine_job *job, struct ddp_err *err)
{
    struct engine *e = xcalloc(1, sizeof *e);
    e->job = *job;
    e->reducer = reducer_create(job->group, job->model, job->buckets, err);
    if (!e->reducer) {
        free(e);
        return NULL;
    }
    model_set_grads(job->model, reducer_grads(e->reducer));
    model_set_dropout(job->model, job->dropout);
    batch_buf_init(&e->batch, job->data, job->batch_size);
    snprintf(e->text, sizeof e->text, "%s, %d thread%s per rank", job->kernels->name,
             job->threads, job->threads == 1 ? "" : "s");
    return e;
}

static const char *cpu_describe(const struct engine *e)
{
    return e->text;
}

static size_t cpu_buckets(const struct engine *e)
{
    return reducer_buckets(e->reducer);
}

static int cpu_step(struct engine *e, const struct engine_step *s,
                    struct engine_result *result, struct ddp_err *err)
{
    const struct engine_job *job = &e->job;
    float share = (float)s->mine / (float)s->all, loss = 0;
    int correct = 0;
    e->apart = true;
    reducer_begin(e->reducer, s->mine == 0);
    if (s->mine > 0) {
        struct batch b =
            dataset_gather(job->data, &job->data->train, s->which, s->mine, &e->batch);
        loss = model_train_step(job->model, &b, share, s->dropout_seed, s->step, &correct,
                                reducer_ready, e->reducer);
    }
    *result = (struct engine_result){.of = *s,
                                     .loss = loss,
                                     .sums = {.loss = loss * share,
                                              .correct = (float)correct,
                                              .bad = isfinite(loss) ? 0 : 1,
                                              .stop = s->stop ? 1 : 0,
                                              .interrupted = s->interrupted ? 1 : 0}};
    result->of.which = NULL;
    if (reducer_finish(e->reducer, &result->sums, err) < 0)
        return -1;
    if (result->sums.bad == 0)
        optim_step(job->optim, model_weights(job->model), model_grads(job->model), s->lr);
    return 1;
}

static int cpu_settle(struct engine *e, struct engine_result *result, struct ddp_err *err)
{
    bool apart = e->apart;
    e->apart = false;
    return apart ? replica_average(e->job.group, e->job.model, err) : 0;
}

static int cpu_evaluate(struct engine *e, const struct samples *part,
                        const uint32_t *which, int n, float *loss, int *correct,
                        struct ddp_err *err)
{
    struct batch b = dataset_gather(e->job.data, part, which, n, &e->batch);
    *loss = model_evaluate(e->job.model, &b, correct);
    return 0;
}

static int cpu_copy(struct engine *e, struct ddp_err *err)
{
    return 0; /* there is one copy only */
}

const struct engine_type engine_cpu = {
    .name = "cpu",
    .probe = cpu_probe,
    .open = cpu_open,
    .close = cpu_close,
    .describe = cpu_describe,
    .buckets = cpu_buckets,
    .step = cpu_step,
    .settle = cpu_settle,
    .evaluate = cpu_evaluate,
    .push = cpu_copy,
    .pull = cpu_copy,
};
