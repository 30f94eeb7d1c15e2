/* worker/cuda/sums.c - see engine_impl.h: reductions over the ranks, and each rank's
 * pieces
 *
 * Buckets of gradients are reduced on the stream `sums` as they become final, in the
 * plan's order, which is the same on all ranks; it forks from main each time and joins it
 * before the optimiser. The last stage's last bucket has the step's numbers, the head.
 * Stages on one device share its lane and the stream `sums`, and all ranks launch the
 * last stage's reductions before the first one's, since NCCL requires one order.
 *
 * With a sharded optimiser a bucket is reduce-scattered: each rank gets the sums of an
 * even part. The remainder, a few floats per bucket, is summed and updated by every
 * rank. Then the weights are gathered.
 */
#include "worker/cuda/engine_impl.h"

#include "common/mem.h"

#include <stdio.h>

/* ---- the plan ---- */

/* Each rank's even part of bucket b; every rank has the remainder. */
static size_t even_part(const struct stage *s, const struct bucket *b)
{
    return b->count / (size_t)s->e->size;
}

static void cut_pieces(struct stage *s)
{
    const struct engine *e = s->e;
    size_t size = (size_t)e->size;
    s->npieces = 0;
    if (!shares_out(e)) {
        s->pieces[s->npieces++] = (struct piece){s->part.offset, s->part.count, true};
        return;
    }
    for (size_t i = 0; i < s->nbuckets; i++) {
        const struct bucket *b = &s->buckets[i];
        size_t each = even_part(s, b), even = size * each, rest = b->count - even;
        if (each > 0)
            s->pieces[s->npieces++] =
                (struct piece){b->offset + (size_t)e->rank * each, each, false};
        if (rest > 0)
            s->pieces[s->npieces++] = (struct piece){b->offset + even, rest, true};
    }
}

void sums_plan(struct engine *e)
{
    const struct reducer_settings *set = &e->job.buckets;
    bool at_once = !set->overlap && !shares_out(e);
    e->buckets = xcalloc(e->job.model->nparams, sizeof *e->buckets);
    for (EACH_STAGE_BACK(s, e)) {
        s->buckets = e->buckets + e->nbuckets;
        s->nbuckets =
            bucket_plan(e->job.model->params + s->part.first, s->part.n,
                        set->first_bytes / sizeof(float),
                        at_once ? SIZE_MAX : set->cap_bytes / sizeof(float), s->buckets);
        e->nbuckets += s->nbuckets;
        s->pieces = xcalloc(2 * s->part.n + 1, sizeof *s->pieces);
        cut_pieces(s);
    }
}

size_t sums_state_floats(const struct stage *s)
{
    size_t all = 0;
    for (size_t i = 0; i < s->npieces; i++)
        all += s->pieces[i].count;
    return all;
}

/* ---- in a step ---- */

static void put_sums(struct stage *s, const struct bucket *b, bool with_head)
{
    const struct engine *e = s->e;
    struct comm *c = e->comm;
    float *g = place_in(s, s->grads, b->offset);
    size_t head = with_head ? CUDA_HEAD : 0;
    if (!shares_out(e)) { /* the head precedes the last bucket */
        comm_all_reduce(c, s->lane, g - head, b->count + head, DDP_F32, s->sums);
        return;
    }
    size_t each = even_part(s, b), rest = b->count % (size_t)e->size;
    comm_begin(c);
    if (each)
        comm_reduce_scatter(c, s->lane, g, each, s->sums);
    if (rest)
        comm_all_reduce(c, s->lane, g + (size_t)e->size * each, rest, DDP_F32, s->sums);
    if (head)
        comm_all_reduce(c, s->lane, s->grads - head, head, DDP_F32, s->sums);
    comm_end(c);
}

static void sum_bucket(struct stage *s)
{
    char name[32];
    bool last = s->started == s->nbuckets - 1;
    const struct bucket *b = &s->buckets[s->started++];
    snprintf(name, sizeof name, "bucket %zu", (size_t)(b - s->e->buckets));
    spans_sum(s, NULL, 0);
    put_sums(s, b, last && s == last_of(s->e));
    spans_sum(s, name, b->count * sizeof(float));
}

/* Makes the stream `sums` wait for main. */
static void fork_sums(struct stage *s)
{
    stream_follow(s->sums, s->main, s->ready);
}

/* Makes main wait for the stream `sums`. */
static void join_sums(struct stage *s)
{
    stream_follow(s->main, s->sums, s->summed);
}

void sums_ready(size_t offset, size_t count, void *stage)
{
    struct stage *s = stage;
    if (!s->first && !s->none) /* adds to the step's gradients, which are final after the
                                  last micro-batch */
        cuda_add(place_in(s, s->grads, offset), place_in(s, s->extra, offset),
                 (int64_t)count, CUDA_F32, s->main);
    if (!s->e->comm || !s->e->job.buckets.overlap || !s->last)
        return;
    size_t final = bucket_final(s->buckets, s->nbuckets, s->started, offset);
    if (s->started < final)
        fork_sums(s);
    while (s->started < final)
        sum_bucket(s);
}

void sums_finish(struct stage *s)
{
    if (!s->e->comm)
        return;
    fork_sums(s);
    while (s->started < s->nbuckets)
        sum_bucket(s);
    join_sums(s);
}

void sums_norm(double *v, size_t n, void *stage)
{
    struct stage *s = stage;
    fork_sums(s);
    spans_sum(s, NULL, 0);
    comm_all_reduce(s->e->comm, s->lane, v, n, DDP_F64, s->sums);
    spans_sum(s, "norm", n * sizeof *v);
    join_sums(s);
}

/* With a sharded optimiser the ranks add up their pieces; what all ranks update is
 * counted once, by the last rank. */
void sums_squares(struct stage *s)
{
    const struct engine *e = s->e;
    bool more = false;
    for (size_t i = 0; i < s->npieces; i++) {
        const struct piece *p = &s->pieces[i];
        bool mine = !p->of_all || !shares_out(e) || e->rank == e->size - 1;
        if (mine)
            cuda_squares(place_in(s, s->grads, p->offset), (int64_t)p->count, more,
                         s->parts, s->main);
        more = more || mine;
    }
    if (!more) /* this rank has no piece of it */
        cuda_squares(s->grads, 0, false, s->parts, s->main);
    if (shares_out(e))
        sums_norm(s->parts, CUDA_PARTS, s);
}

void sums_gather(struct stage *s, float *block)
{
    fork_sums(s);
    comm_gather_buckets(s->e->comm, s->lane, block, s->part.offset, s->buckets,
                        s->nbuckets, s->sums);
    join_sums(s);
}

static void warm_up(struct stage *s)
{
    struct engine *e = s->e;
    s->started = 0;
    stage_enter(s);
    cuda_doing("the first sums");
    sums_finish(s);
    layers_warm_norms(s->sets[0].net);
    if (shares_out(e)) {
        sums_norm(s->parts, CUDA_PARTS, s);
        sums_gather(s, s->grads);
    }
    CUDA(cudaEventRecord(s->summed, s->main));
    comm_await(e->comm, s->summed, e->job.timeout_ms);
}

void sums_warm_up(struct engine *e)
{
    if (!e->comm || e->ngraphs > 0)
        return;
    for (EACH_STAGE_BACK(s, e))
        warm_up(s);
}
