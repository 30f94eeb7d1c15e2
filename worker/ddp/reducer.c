/* worker/ddp/reducer.c - the plan of buckets, and their reduction during backward; see
 * reducer.h
 *
 * The last bucket of the plan begins at gradient 0; it is reduced together with the head,
 * and therefore started by reducer_finish(), when the loss is known. That costs no
 * overlap, since backward has ended by then. (With `shard` the head is reduced alone,
 * since every rank needs all of it.)
 *
 * Buckets by time: the first steps use buckets by size, and record when each layer's
 * gradients are ready. Then all ranks average these times, time two reductions, and
 * compute the same plan. The first steps of a run are its slowest, so the shortest
 * time of each is taken.
 */
#include "worker/ddp/reducer_impl.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/scoped.h"
#include "worker/kernels/pool.h"
#include "worker/kernels/scratch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LINE = 16,       /* floats: a cache line */
    ROOM = 96 << 10, /* smallest scratch memory, in floats */
    ROWS = 64,       /* rows computed from factors at once: see find_room() */
    HEAD = LINE,     /* so that gradients stay aligned */
    WATCH_STEPS = 5, /* steps measured before buckets are planned by time */
    PROBES = 4,
    PROBE_FLOATS = 256
};
_Static_assert(sizeof(struct step_sums) <= HEAD * sizeof(float), "the sums fit the head");

/* ---- the plan ---- */

/* The unit of a rank's part: a cache line, so that no line is shared by two ranks, or
 * LINE rows where gradients are computed by rows. */
static struct bucket part_of(const struct reducer *r, struct bucket b, int rank)
{
    size_t row = factors_row(r, b.offset);
    return bucket_part(b, row > 0 ? row * LINE : LINE, rank, r->size);
}

void reducer_count_parts(struct reducer *r, struct bucket b)
{
    for (int i = 0; i < r->size; i++)
        r->counts[i] = part_of(r, b, i).count;
}

/* This rank's piece of each bucket, or its part of the whole block. */
static void cut_pieces(struct reducer *r)
{
    const struct bucket whole = {0, r->count};
    const struct bucket *of = r->settings.shard ? r->buckets : &whole;
    r->npieces = r->settings.shard ? r->nbuckets : 1;
    for (size_t i = 0; i < r->npieces; i++) {
        struct rank_piece *p = &r->pieces[i];
        p->at = part_of(r, of[i], r->rank);
        p[1].start = p->start + (p->at.count + LINE - 1) / LINE * LINE;
    }
}

size_t reducer_rows_at(const struct reducer *r, size_t offset)
{
    size_t row = factors_row(r, offset), rows = row > 0 ? ROOM / row : 0;
    return row * (rows < ROWS ? ROWS : rows / LINE * LINE);
}

/* A block of sums is used at once, and the next one overwrites it, so that it stays in
 * the second-level cache. With a cache of 1 MiB blocks of 200 to 600 KiB are equally
 * fast; writing and reading the whole gradient costs 1 to 2 % of a step. But each
 * block reads all factors once: with rows of 36 KB, which do not stay in the cache
 * anyway, 16 at a time cost more than they gain. */
static void find_room(struct reducer *r)
{
    for (size_t i = 0; i < r->nbuckets; i++) {
        size_t n = reducer_rows_at(r, r->buckets[i].offset);
        r->room = n > r->room ? n : r->room;
    }
    if (r->room > 0)
        r->rooms = scratch((size_t)pool_threads() * r->room);
}

/* Do all ranks share memory? Then each has a part of each parameter, so that the cost
 * of reading what other CPUs have written is the same for all. */
static int find_others(struct reducer *r, const struct param *params, size_t n,
                       struct ddp_err *err)
{
    if (!r->settings.direct || r->size == 1 ||
        strcmp(ddp_group_backend(r->group), "shm") != 0)
        return 0;
    r->others = xcalloc((size_t)r->size - 1, sizeof *r->others);
    for (int i = 1; i < r->size; i++)
        r->others[i - 1] = ddp_arena_of(r->group, r->grads, (r->rank + i) % r->size);
    r->settings.shard = true;
    r->settings.overlap = false;
    r->nbuckets = n;
    for (size_t i = 0; i < n; i++)
        r->buckets[i] =
            (struct bucket){params[n - 1 - i].offset, params[n - 1 - i].count};
    if (r->settings.factors)
        TRY(factors_create(r, err));
    find_room(r);
    return 0;
}

struct reducer *reducer_create_for(struct ddp_group *group, const struct param *params,
                                   size_t nparams, struct reducer_settings settings,
                                   struct ddp_err *err)
{
    struct reducer *r = xcalloc(1, sizeof *r);
    r->group = group;
    r->rank = ddp_group_rank(group);
    r->size = ddp_group_size(group);
    r->settings = settings;
    r->count = params[nparams - 1].offset + params[nparams - 1].count;
    r->most = nparams;
    r->buckets = xcalloc(nparams, sizeof *r->buckets);
    r->pieces = xcalloc(nparams + 1, sizeof *r->pieces);
    r->reductions = xcalloc(nparams, sizeof *r->reductions);
    r->counts = xcalloc((size_t)r->size, sizeof *r->counts);
    r->layers = xcalloc(nparams, sizeof *r->layers);
    r->ready = xcalloc(nparams + 2, sizeof *r->ready);
    bool at_once = !settings.overlap && !settings.shard;
    r->nbuckets =
        bucket_plan(params, nparams, settings.first_bytes / sizeof(float),
                    at_once ? SIZE_MAX : settings.cap_bytes / sizeof(float), r->buckets);
    if (!settings.elsewhere)
        r->block = ddp_arena_alloc(group, (HEAD + r->count) * sizeof(float), err);
    r->grads = r->block ? r->block + HEAD : NULL;
    if ((!r->block && !settings.elsewhere) || find_others(r, params, nparams, err) < 0) {
        reducer_destroy(r);
        return NULL;
    }
    /* pieces planned by size stay, since the optimiser's state depends on them */
    if (!settings.timed || r->settings.shard || !settings.overlap || r->size == 1)
        r->watched = WATCH_STEPS;
    cut_pieces(r);
    return r;
}

struct reducer *reducer_create(struct ddp_group *group, struct model *model,
                               struct reducer_settings settings, struct ddp_err *err)
{
    struct reducer *r =
        reducer_create_for(group, model->params, model->nparams, settings, err);
    if (!r)
        return NULL;
    if (r->settings.shard) {
        float *weights = ddp_arena_alloc(group, r->count * sizeof *weights, err);
        if (!weights) {
            reducer_destroy(r);
            return NULL;
        }
        model_set_weights(model, weights);
    }
    model_set_grads(model, r->grads);
    return r;
}

void reducer_destroy(struct reducer *r)
{
    if (!r)
        return;
    free(r->buckets);
    free(r->pieces);
    free(r->reductions);
    free(r->counts);
    free(r->layers);
    free(r->ready);
    free(r->others);
    factors_destroy(r);
    free(r->rooms);
    free(r);
}

size_t reducer_buckets(const struct reducer *r)
{
    return r->others ? 0 : r->nbuckets;
}

void reducer_plan_text(const struct reducer *r, char *text, size_t size)
{
    bool settled = r->watched == WATCH_STEPS && r->settings.overlap;
    bucket_plan_write(r->buckets, settled ? r->nbuckets : 0, text, size);
}

int reducer_use_plan(struct reducer *r, const char *text)
{
    OWNED struct bucket *plan = xcalloc(r->most + 1, sizeof *plan);
    size_t n = bucket_plan_read(text, r->count, r->most, plan);
    if (n > 0 && !r->settings.shard && r->settings.overlap) {
        memcpy(r->buckets, plan, n * sizeof *plan);
        r->nbuckets = n;
        r->watched = WATCH_STEPS;
        cut_pieces(r);
    }
    return n > 0 ? 0 : -1;
}

const struct bucket *reducer_plan(const struct reducer *r)
{
    return r->buckets;
}

float *reducer_grads(struct reducer *r)
{
    return r->grads;
}

void reducer_span(const struct reducer *r, size_t bucket, size_t floats, int64_t began_ns)
{
    char what[32];
    if (r->others)
        snprintf(what, sizeof what, "wait for %s", bucket == 0 ? "gradients" : "weights");
    else
        snprintf(what, sizeof what, "bucket %zu", bucket);
    trace_span(r->settings.trace, TRACE_TALK, what, floats * sizeof(float), began_ns,
               now_ns());
}

/* ---- buckets by time ---- */

static void watch_layer(struct reducer *r, size_t offset, size_t count)
{
    double now = (double)(now_ns() - r->begin_ns) / 1e9;
    size_t i = r->seen++;
    if (r->watched == 0 || i >= r->nlayers) { /* in the first step: the order of layers */
        r->layers[i] = (struct bucket){offset, count};
        r->ready[i] = now;
        r->nlayers = i + 1;
    } else if (now < r->ready[i]) {
        r->ready[i] = now;
    }
}

/* Seconds of a reduction of `count` floats: the best of several, since the first
 * allocates pages, and on a busy machine any may have to wait. */
static int time_reduction(struct reducer *r, size_t count, double *seconds,
                          struct ddp_err *err)
{
    for (int i = 0; i < PROBES; i++) {
        int64_t began = now_ns();
        TRY(ddp_all_reduce(r->group, r->grads, count, DDP_F32, DDP_SUM, err));
        double took = (double)(now_ns() - began) / 1e9;
        *seconds = i == 0 || took < *seconds ? took : *seconds;
    }
    return 0;
}

/* The gradients may be overwritten: backward comes later. */
static int plan_by_time(struct reducer *r, struct ddp_err *err)
{
    size_t n = r->nlayers, probe = r->count < PROBE_FLOATS ? r->count : PROBE_FLOATS;
    memset(r->grads, 0, r->count * sizeof(float));
    TRY(time_reduction(r, probe, &r->ready[n], err));
    TRY(time_reduction(r, r->count, &r->ready[n + 1], err));
    TRY(bucket_plan_agreed(r->group, r->layers, r->ready, n, r->buckets, &r->nbuckets,
                           err));
    cut_pieces(r);
    return 0;
}

/* ---- a step ---- */

int reducer_begin(struct reducer *r, bool idle, struct ddp_err *err)
{
    r->started = r->ended = 0;
    r->failed = r->summed = false;
    /* Idle ranks have measured nothing. The number of layers is the same on every
     * rank, so all decide alike. */
    if (r->watched < WATCH_STEPS && r->begin_ns > 0 && ++r->watched == WATCH_STEPS) {
        int64_t n = (int64_t)r->nlayers;
        if (ddp_all_reduce(r->group, &n, 1, DDP_I64, DDP_MIN, err) < 0 ||
            (n > 0 && plan_by_time(r, err) < 0))
            return -1;
    }
    r->seen = 0;
    r->begin_ns = now_ns();
    if (idle)
        memset(r->grads, 0, r->count * sizeof(float));
    if (idle)
        factors_idle(r);
    return 0;
}

static void start_bucket(struct reducer *r)
{
    struct reduction *f = &r->reductions[r->started];
    struct bucket b = r->buckets[r->started];
    size_t head = r->started == r->nbuckets - 1 ? HEAD : 0;
    float *from = r->grads + b.offset, *to = r->grads + r->pieces[r->started].at.offset;
    f->began_ns = now_ns();
    if (r->settings.shard)
        reducer_count_parts(r, b);
    f->request = r->settings.shard
                     ? ddp_ireduce_scatterv(r->group, from, to, r->counts, DDP_F32,
                                            DDP_SUM, &r->err)
                     : ddp_iall_reduce(r->group, from - head, b.count + head, DDP_F32,
                                       DDP_SUM, &r->err);
    r->failed = f->request == NULL;
    r->started++;
}

static void end_bucket(struct reducer *r)
{
    size_t i = r->ended++;
    reducer_span(r, i, r->buckets[i].count, r->reductions[i].began_ns);
}

static void make_progress(struct reducer *r)
{
    while (!r->failed && r->ended < r->started) {
        int done = 0;
        r->failed = ddp_test(r->reductions[r->ended].request, &done, &r->err) < 0;
        if (!done || r->failed)
            return;
        end_bucket(r);
    }
}

void reducer_ready(size_t offset, size_t count, void *reducer)
{
    struct reducer *r = reducer;
    if (r->size == 1)
        return;
    factors_give(r, offset);
    if (r->watched < WATCH_STEPS)
        watch_layer(r, offset, count);
    if (!r->settings.overlap || r->failed)
        return;
    size_t final = bucket_final(r->buckets, r->nbuckets - 1, r->started, offset);
    while (r->started < final && !r->failed)
        start_bucket(r);
    make_progress(r);
}

static int reduce_rest(struct reducer *r, struct ddp_err *err)
{
    while (!r->failed && r->started < r->nbuckets)
        start_bucket(r);
    while (!r->failed && r->ended < r->nbuckets) {
        r->failed = ddp_wait(r->reductions[r->ended].request, &r->err) < 0;
        if (!r->failed)
            end_bucket(r);
    }
    return r->failed ? err_set(err, "%s", r->err.text) : 0;
}

int reducer_finish(struct reducer *r, struct step_sums *sums, struct ddp_err *err)
{
    if (r->size == 1)
        return 0;
    if (r->settings.elsewhere)
        return ddp_all_reduce(r->group, sums, sizeof *sums / sizeof(float), DDP_F32,
                              DDP_SUM, err);
    memset(r->block, 0, HEAD * sizeof(float));
    memcpy(r->block, sums, sizeof *sums);
    int rc = r->others ? 0 : reduce_rest(r, err);
    int64_t began = now_ns();
    if (rc == 0 && r->settings.shard) /* afterwards all ranks have finished backward */
        rc = ddp_all_reduce(r->group, r->block, HEAD, DDP_F32, DDP_SUM, err);
    if (r->others)
        reducer_span(r, 0, r->count, began);
    memcpy(sums, r->block, sizeof *sums);
    return rc;
}
