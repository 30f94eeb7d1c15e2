/* worker/cuda/sums.c - see engine_impl.h: what the ranks sum up, and which part is whose
 *
 * Buckets of gradients are put on the stream `sums` as they become final, in the plan's
 * order, which is every rank's; it forks off from main each time and joins it before the
 * optimiser. The last bucket carries the step's numbers, the head.
 *
 * With a shared-out optimiser a bucket is scattered: each rank gets the sums of an even
 * part. What does not divide by the number of ranks, a few floats of a bucket, is summed
 * and updated by everybody. Then the weights are gathered.
 *
 * Buckets by time: some steps are rehearsed with nothing in them before the first one.
 */
#include "worker/cuda/engine_impl.h"

#include "common/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const what = "a step";

/* ---- the plan ---- */

/* Of bucket b, each rank's even part; the rest is everybody's. */
static size_t even_part(const struct engine *e, const struct bucket *b)
{
    return b->count / (size_t)e->size;
}

static void cut_pieces(struct engine *e)
{
    size_t all = model_param_count(e->job.model);
    e->npieces = 0;
    if (!shares_out(e)) {
        e->pieces[e->npieces++] = (struct piece){0, all, true};
        return;
    }
    for (size_t i = 0; i < e->nbuckets; i++) {
        const struct bucket *b = &e->buckets[i];
        size_t each = even_part(e, b), rest = b->count % (size_t)e->size;
        if (each > 0)
            e->pieces[e->npieces++] =
                (struct piece){b->offset + (size_t)e->rank * each, each, false};
        if (rest > 0)
            e->pieces[e->npieces++] =
                (struct piece){b->offset + (size_t)e->size * each, rest, true};
    }
}

void sums_plan(struct engine *e)
{
    size_t n;
    const struct reducer_settings *s = &e->job.buckets;
    const struct param *params = model_params(e->job.model, &n);
    e->buckets = xcalloc(n, sizeof *e->buckets);
    e->pieces = xcalloc(2 * n, sizeof *e->pieces);
    e->nbuckets = bucket_plan(params, n, s->first_bytes / sizeof(float),
                              s->cap_bytes / sizeof(float), e->buckets);
    cut_pieces(e);
}

size_t sums_state_floats(const struct engine *e)
{
    size_t all = 0;
    for (size_t i = 0; i < e->npieces; i++)
        all += e->pieces[i].count;
    return all;
}

void sums_plan_text(const struct engine *e, char *text, size_t size)
{
    bucket_plan_write(e->buckets, e->settled ? e->nbuckets : 0, text, size);
}

/* A graph that was recorded has the old plan in it: this comes before any. */
void sums_use_plan(struct engine *e, const char *text)
{
    size_t nparams;
    struct bucket plan[2 * MODEL_MAX_LAYERS];
    model_params(e->job.model, &nparams);
    size_t n = bucket_plan_read(text, model_param_count(e->job.model), nparams, plan);
    if (n == 0 || !e->settled || e->ngraphs > 0)
        return;
    memcpy(e->buckets, plan, n * sizeof *plan);
    e->nbuckets = n;
    cut_pieces(e);
}

/* ---- in a step ---- */

static int put_sums(struct engine *e, const struct bucket *b, bool with_head,
                    struct ddp_err *err)
{
    float *g = e->grads + b->offset;
    size_t head = with_head ? CUDA_HEAD : 0;
    if (!shares_out(e)) /* the head lies in front of the last bucket */
        return comm_all_reduce(e->comm, g - head, b->count + head, e->sums, err);
    size_t each = even_part(e, b), rest = b->count % (size_t)e->size;
    if (comm_begin(e->comm, err) < 0 ||
        (each && comm_reduce_scatter(e->comm, g, each, e->sums, err) < 0) ||
        (rest &&
         comm_all_reduce(e->comm, g + (size_t)e->size * each, rest, e->sums, err) < 0) ||
        (head && comm_all_reduce(e->comm, e->block, head, e->sums, err) < 0))
        return -1;
    return comm_end(e->comm, err);
}

static int reduce_bucket(struct engine *e, size_t i, const struct bucket *b,
                         bool with_head, struct ddp_err *err)
{
    char name[32];
    snprintf(name, sizeof name, "bucket %zu", i);
    return spans_sum(e, name, b->count * sizeof(float), err) < 0 ||
                   put_sums(e, b, with_head, err) < 0
               ? -1
               : spans_summed(e, err);
}

static int sum_bucket(struct engine *e, struct ddp_err *err)
{
    size_t i = e->started++;
    return reduce_bucket(e, i, &e->buckets[i], i == e->nbuckets - 1, err);
}

/* The sums' stream goes on from where main is now. */
static int fork_sums(struct engine *e, struct ddp_err *err)
{
    return check_cuda(cudaEventRecord(e->ready, e->main), what, err) < 0
               ? -1
               : check_cuda(cudaStreamWaitEvent(e->sums, e->ready, 0), what, err);
}

/* Main goes on behind what has been put on sums. */
static int join_sums(struct engine *e, struct ddp_err *err)
{
    return check_cuda(cudaEventRecord(e->summed, e->sums), what, err) < 0
               ? -1
               : check_cuda(cudaStreamWaitEvent(e->main, e->summed, 0), what, err);
}

int sums_ready(size_t offset, size_t count, void *arg, struct ddp_err *err)
{
    struct engine *e = arg;
    bool forked = false;
    if (!e->first && !e->none) /* of the step's gradients, once all batches are in */
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

int sums_finish(struct engine *e, struct ddp_err *err)
{
    const struct bucket whole = {0, model_param_count(e->job.model)};
    if (!e->comm)
        return 0;
    if (fork_sums(e, err) < 0)
        return -1;
    if (!e->job.buckets.overlap && !shares_out(e)) {
        if (reduce_bucket(e, 0, &whole, true, err) < 0)
            return -1;
    } else {
        while (e->started < e->nbuckets) {
            if (sum_bucket(e, err) < 0)
                return -1;
        }
    }
    return join_sums(e, err);
}

int sums_norm(double *v, size_t n, void *engine, struct ddp_err *err)
{
    struct engine *e = engine;
    size_t bytes = n * sizeof *v;
    return fork_sums(e, err) < 0 || spans_sum(e, "norm", bytes, err) < 0 ||
                   comm_all_reduce_f64(e->comm, v, n, e->sums, err) < 0 ||
                   spans_summed(e, err) < 0
               ? -1
               : join_sums(e, err);
}

/* Of a shared-out block the ranks add up their pieces; what is everybody's counts once,
 * at the last rank. */
int sums_squares(struct engine *e, struct ddp_err *err)
{
    bool more = false;
    for (size_t i = 0; i < e->npieces; i++) {
        const struct piece *p = &e->pieces[i];
        bool mine = !p->everybodys || !shares_out(e) || e->rank == e->size - 1;
        if (mine)
            cuda_squares(e->grads + p->offset, (int64_t)p->count, more, e->parts,
                         e->main);
        more = more || mine;
    }
    if (!more) /* nothing of it is ours */
        cuda_squares(e->grads, 0, false, e->parts, e->main);
    return shares_out(e)
               ? comm_all_reduce_f64(e->comm, e->parts, CUDA_PARTS, e->main, err)
               : 0;
}

int sums_gather(struct engine *e, float *block, struct ddp_err *err)
{
    if (comm_begin(e->comm, err) < 0)
        return -1;
    for (size_t i = 0; i < e->nbuckets; i++) {
        const struct bucket *b = &e->buckets[i];
        size_t each = even_part(e, b);
        if (each && comm_all_gather(e->comm, block + b->offset, each, e->main, err) < 0)
            return -1;
    }
    return comm_end(e->comm, err);
}

int sums_warm_up(struct engine *e, struct ddp_err *err)
{
    if (!e->comm || e->ngraphs > 0)
        return 0;
    e->started = 0;
    if (sums_finish(e, err) < 0 || layers_warm_norms(e->net, err) < 0 ||
        (shares_out(e) &&
         (comm_all_reduce_f64(e->comm, e->parts, CUDA_PARTS, e->main, err) < 0 ||
          sums_gather(e, e->grads, err) < 0)) ||
        check_cuda(cudaEventRecord(e->summed, e->main), what, err) < 0)
        return -1;
    return comm_await(e->comm, e->summed, e->job.timeout_ms, "the first sums", err);
}

/* ---- buckets by time ---- */

enum { REHEARSALS = 2 };

struct rehearsal {
    struct engine *e;
    struct bucket *pieces; /* as they become final */
    cudaEvent_t *at;
    size_t n;
};

static int note(size_t offset, size_t count, void *arg, struct ddp_err *err)
{
    struct rehearsal *r = arg;
    r->pieces[r->n] = (struct bucket){offset, count};
    return check_cuda(cudaEventRecord(r->at[r->n++], r->e->main), "rehearsing", err);
}

static int seconds_between(cudaEvent_t a, cudaEvent_t b, double *out, struct ddp_err *err)
{
    float ms = 0;
    if (check_cuda(cudaEventElapsedTime(&ms, a, b), "rehearsing", err) < 0)
        return -1;
    *out = (double)ms / 1000;
    return 0;
}

/* When each piece is final after the beginning of backward: the last rehearsal's. */
static int rehearse(struct rehearsal *r, cudaEvent_t begin, double *ready,
                    struct ddp_err *err)
{
    struct engine *e = r->e;
    struct layers_plan *plan = layers_plan(e->net, e->job.batch_size, err);
    for (int i = 0; plan && i < REHEARSALS; i++) {
        r->n = 0;
        if (layers_forward(e->net, plan, e->in, 0, err) < 0 ||
            check_cuda(cudaEventRecord(begin, e->main), "rehearsing", err) < 0 ||
            layers_backward(e->net, plan, e->grads, note, r, err) < 0)
            return -1;
    }
    if (!plan || check_cuda(cudaStreamSynchronize(e->main), "rehearsing", err) < 0)
        return -1;
    for (size_t i = 0; i < r->n; i++) {
        if (seconds_between(begin, r->at[i], &ready[i], err) < 0)
            return -1;
    }
    return 0;
}

/* How long the sum of so many floats takes. */
static int time_sum(struct engine *e, size_t count, const cudaEvent_t at[2],
                    double *seconds, struct ddp_err *err)
{
    for (int i = 0; i < REHEARSALS; i++) {
        if (check_cuda(cudaEventRecord(at[0], e->main), "rehearsing", err) < 0 ||
            comm_all_reduce(e->comm, e->block, count, e->main, err) < 0 ||
            check_cuda(cudaEventRecord(at[1], e->main), "rehearsing", err) < 0 ||
            comm_await(e->comm, at[1], e->job.timeout_ms, "rehearsing", err) < 0)
            return -1;
    }
    return seconds_between(at[0], at[1], seconds, err);
}

static int measure(struct rehearsal *r, double *ready, double seconds[2],
                   struct ddp_err *err)
{
    struct engine *e = r->e;
    cudaEvent_t *begin = &r->at[r->n];
    if (rehearse(r, *begin, ready, err) < 0 ||
        time_sum(e, CUDA_HEAD, begin, &seconds[0], err) < 0 ||
        time_sum(e, CUDA_HEAD + model_param_count(e->job.model), begin, &seconds[1],
                 err) < 0)
        return -1;
    return 0;
}

/* All ranks plan by the same times, the mean of what they saw. */
static int agree(struct rehearsal *r, double *times, struct ddp_err *err)
{
    struct engine *e = r->e;
    size_t n = r->n;
    if (ddp_all_reduce(e->job.group, times, n + 2, DDP_F64, DDP_AVG, err) < 0)
        return -1;
    double latency = times[n], whole = times[n + 1];
    double each =
        (whole > latency ? whole - latency : 0) / (double)model_param_count(e->job.model);
    for (size_t i = 1; i < n; i++)
        times[i] = times[i] > times[i - 1] ? times[i] : times[i - 1];
    e->nbuckets = bucket_plan_timed(r->pieces, times, n, latency, each, e->buckets);
    e->settled = true;
    cut_pieces(e);
    return 0;
}

int sums_settle(struct engine *e, struct ddp_err *err)
{
    size_t nparams;
    cudaEvent_t at[2 * MODEL_MAX_LAYERS + 2] = {NULL};
    double times[2 * MODEL_MAX_LAYERS + 2] = {0};
    struct bucket pieces[2 * MODEL_MAX_LAYERS];
    struct rehearsal r = {e, pieces, at, 0};
    int rc = 0;
    /* pieces that were chosen by size stay: the optimiser's state hangs on them */
    if (!e->comm || !e->job.buckets.timed || !e->job.buckets.overlap || shares_out(e))
        return 0;
    model_params(e->job.model, &nparams);
    for (size_t i = 0; i < nparams + 2 && rc == 0; i++)
        rc = check_cuda(cudaEventCreate(&at[i]), "rehearsing", err);
    r.n = nparams; /* behind the pieces' events there are two more */
    double seconds[2] = {0};
    if (rc == 0)
        rc = measure(&r, times, seconds, err);
    times[r.n] = seconds[0];
    times[r.n + 1] = seconds[1];
    if (rc == 0)
        rc = agree(&r, times, err);
    for (size_t i = 0; i < ARRAY_LEN(at) && at[i]; i++)
        cudaEventDestroy(at[i]);
    return rc;
}
