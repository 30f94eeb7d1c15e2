/* worker/pipeline.c - see pipeline.h
 *
 * Two semaphores say how far each stage has come: forwards of stage 0, backwards of
 * stage 1. Only the caller's thread, stage 0's, may talk to the group: it reports the
 * gradients of both stages, since stage 1 has finished its own when stage 0 goes back
 * with the last micro-batch.
 */
#include "worker/pipeline.h"

#include "common/err.h"
#include "common/mem.h"
#include "worker/kernels/pool.h"

#include <math.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>

/* A part of the step's batch. */
struct micro {
    struct model *view; /* owned */
    struct batch batch;
    struct model_pass pass;
    float loss;
    int correct;
};

struct stage {
    struct pipeline *p;
    int from, to; /* layers */
};

struct pipeline {
    struct model *model;
    int micro, threads;
    struct micro *parts;           /* owned, [micro] */
    const struct model_pass *pass; /* the caller's, of this step */
    float *extra; /* borrowed: gradients of a micro-batch that is not the first */
    struct stage stages[PIPELINE_STAGES];

    pthread_t thread; /* of stage 1 */
    bool there, ending;
    sem_t begun;               /* a step, or the end */
    sem_t forwards, backwards; /* micro-batches that are ready for stage 1, for stage 0 */
    int n;                     /* micro-batches of this step */
};

/* ---- what a stage does ---- */

static void wait_for(sem_t *s)
{
    while (sem_wait(s) < 0) { /* a signal */
    }
}

/* A pass of this stage: its layers have a row of their own in a trace. */
static struct model_pass pass_of(const struct stage *s, int m)
{
    struct model_pass pass = s->p->parts[m].pass;
    pass.row += (enum trace_row)(s - s->p->stages);
    return pass;
}

static void forward(struct stage *s, int m)
{
    struct pipeline *p = s->p;
    struct micro *part = &p->parts[m];
    const struct model_pass pass = pass_of(s, m);
    bool last = s == &p->stages[PIPELINE_STAGES - 1];
    if (last)
        wait_for(&p->forwards);
    model_pass_forward(part->view, &pass, s->from, s->to);
    if (last)
        part->loss = model_pass_loss(part->view, &pass, &part->correct);
    else
        sem_post(&p->forwards);
}

/* Reports the gradients of stage 1. */
static void pass_on(const struct pipeline *p)
{
    for (int i = p->stages[1].to; i-- > p->stages[1].from;) {
        const struct model_op *op = &p->model->layers[i];
        if (op->weight)
            p->pass->ready(op->weight->offset, op->nfloats, p->pass->arg);
    }
}

static void backward(struct stage *s, int m)
{
    struct pipeline *p = s->p;
    bool first = s == &p->stages[0];
    struct model_pass pass = pass_of(s, m);
    int embeds = first && pass.batch->tokens;
    if (first)
        wait_for(&p->backwards);
    else
        pass.ready = NULL;
    if (pass.ready)
        pass_on(p);
    model_pass_back(p->parts[m].view, &pass, s->from + embeds, s->to);
    if (!first)
        sem_post(&p->backwards);
    /* at last that of all embeddings: stage 1 may have added to the same weight */
    for (int k = 0; embeds && m == p->n - 1 && k <= m; k++)
        model_pass_back(p->parts[k].view, &p->parts[k].pass, 0, 1);
}

static void run_stage(struct stage *s)
{
    struct pipeline *p = s->p;
    /* p->n may be the next step's once the last of this one's has gone back */
    int n = p->n, stage = (int)(s - p->stages), last = PIPELINE_STAGES - 1;
    for (int round = 0; round < n + last; round++) {
        if (round >= stage && round - stage < n)
            forward(s, round - stage);
        if (round >= last)
            backward(s, round - last);
    }
}

static void *stage_thread(void *arg)
{
    struct pipeline *p = arg;
    pool_set(p->threads);
    for (wait_for(&p->begun); !p->ending; wait_for(&p->begun))
        run_stage(&p->stages[1]);
    pool_set(1);
    return NULL;
}

/* ---- a step ---- */

/* Cut the batch in even parts, as many as it has samples at most. */
static void cut(struct pipeline *p, const struct model_pass *pass)
{
    const struct batch *b = pass->batch;
    const struct io_shape io = p->model->io;
    size_t in = (size_t)io.C * (size_t)io.H * (size_t)io.W;
    p->n = pipeline_micro_batches(b->n, p->micro);
    for (int m = 0; m < p->n; m++) {
        const struct micro_batch of = pipeline_micro_batch(0, b->n, p->n, m);
        struct micro *part = &p->parts[m];
        part->batch = (struct batch){.n = of.n};
        if (b->x)
            part->batch.x = b->x + (size_t)of.from * in;
        if (b->tokens)
            part->batch.tokens = b->tokens + (size_t)of.from * (in + 1);
        if (b->labels)
            part->batch.labels = b->labels + of.from;
        if (b->targets)
            part->batch.targets = b->targets + (size_t)of.from * (size_t)io.outputs;
        part->pass = *pass;
        part->pass.batch = &part->batch;
        part->pass.scale = pass->scale * (float)of.n / (float)b->n;
        part->pass.draw = pass->draw + (uint64_t)of.number;
        part->pass.extra = m > 0 && !pass->extra ? p->extra : pass->extra;
        part->pass.ready = m == p->n - 1 ? pass->ready : NULL;
    }
    p->pass = pass;
}

struct batch_result pipeline_step(struct pipeline *p, const struct model_pass *pass)
{
    struct batch_result all = {0};
    cut(p, pass);
    sem_post(&p->begun);
    run_stage(&p->stages[0]);
    for (int m = 0; m < p->n; m++) {
        const struct micro *part = &p->parts[m];
        all.loss += part->loss * (float)part->batch.n / (float)pass->batch->n;
        all.correct += part->correct;
        if (!all.bad && !isfinite(part->loss))
            all.bad = part->view;
    }
    return all;
}

/* ---- its life ---- */

struct pipeline *pipeline_create(struct model *model, int max_batch, int micro,
                                 int threads, float *extra, struct ddp_err *err)
{
    int first[PIPELINE_STAGES + 1], rc;
    struct pipeline *p = xcalloc(1, sizeof *p);
    *p = (struct pipeline){.model = model,
                           .extra = extra,
                           .micro = pipeline_micro_batches(max_batch, micro),
                           .threads =
                               threads > PIPELINE_STAGES ? threads / PIPELINE_STAGES : 1};
    sem_init(&p->begun, 0, 0);
    sem_init(&p->forwards, 0, 0);
    sem_init(&p->backwards, 0, 0);
    p->parts = xcalloc((size_t)p->micro, sizeof *p->parts);
    if (pipeline_split(model, PIPELINE_STAGES, first, err) < 0)
        goto fail;
    for (int s = 0; s < PIPELINE_STAGES; s++)
        p->stages[s] = (struct stage){.p = p, .from = first[s], .to = first[s + 1]};
    pool_set(p->threads); /* the first stage's, and what views are made for */
    for (int m = 0, most = (max_batch + p->micro - 1) / p->micro; m < p->micro; m++)
        p->parts[m].view = model_create_view(model, most);
    rc = pthread_create(&p->thread, NULL, stage_thread, p);
    if (rc != 0) {
        err_set(err, "--stages %d: cannot start a thread: %s", PIPELINE_STAGES,
                strerror(rc));
        goto fail;
    }
    p->there = true;
    return p;

fail:
    pipeline_destroy(p);
    return NULL;
}

void pipeline_destroy(struct pipeline *p)
{
    if (!p)
        return;
    if (p->there) {
        p->ending = true;
        sem_post(&p->begun);
        pthread_join(p->thread, NULL);
    }
    for (int m = 0; m < p->micro; m++)
        model_destroy(p->parts[m].view);
    free(p->parts);
    free(p);
}
