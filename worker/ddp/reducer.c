/* worker/ddp/reducer.c - see reducer.h
 *
 * The block in the arena: HEAD floats with the step's sums, then the gradients. The
 * last bucket of the plan begins at gradient 0; it is reduced together with the head,
 * and therefore started by reducer_finish(), when the loss is known. That costs no
 * overlap, since backward has ended by then. (With `shard` the head is reduced alone,
 * since every rank needs all of it.)
 *
 * Buckets by time: the first steps use buckets by size, and record when each layer's
 * gradients are ready. Then all ranks average these times, time two reductions, and
 * compute the same plan. The first steps of a run are its slowest, so the shortest
 * time of each is taken.
 *
 * Where ranks share memory, the sum of a rank's piece is accumulated in the others'
 * gradients, which are not needed any more: the next rank's become mine plus its own,
 * those of the one after it that sum plus its own, and the last has the total. This is
 * faster where CPUs have no common cache: writing a cache line that two CPUs have read
 * takes ten times as long as taking it from the one that has written it
 * (bench/README.md).
 */
#include "worker/ddp/reducer.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/mem.h"
#include "worker/ddp/factors.h"
#include "worker/kernels/pool.h"
#include "worker/optim/optim.h"

#include <math.h>
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

struct reducer {
    struct ddp_group *group; /* borrowed */
    int rank, size;
    struct reducer_settings settings;
    float *block; /* in the arena: head and gradients */
    float *grads; /* block + HEAD */
    size_t count; /* gradients */
    /* owned, [size - 1]: blocks of the ranks from the next on; NULL: not direct */
    float **others;
    struct factors *factors; /* owned; NULL: none */
    float *rooms;            /* owned: scratch memory for sums, one per thread, */
    size_t room;             /* of so many floats */
    bool summed;             /* this step's pieces have been summed */

    size_t most;                   /* most buckets: as many as parameters */
    struct bucket *buckets;        /* owned, [most] */
    struct bucket *pieces;         /* owned: this rank's part of each bucket */
    size_t *starts;                /* owned, [most + 1]: of reducer_start() */
    struct ddp_request **requests; /* owned, one per bucket; NULL: ended or not started */
    int64_t *began;                /* owned, one per bucket */
    size_t *counts;                /* owned, [size]: sizes of the parts of a bucket */
    size_t nbuckets, npieces;
    size_t started, ended; /* numbers of buckets, in the plan's order */

    struct bucket *layers; /* owned: what becomes ready together, from the last */
    double *ready; /* owned, [nlayers + 2]: seconds since the step began, and times of two
                      reductions */
    size_t nlayers, seen;
    int watched; /* measured steps; WATCH_STEPS: done */
    int64_t begin_ns;

    reducer_span_fn span;
    void *span_arg;
    struct ddp_err err; /* the first failure of the step */
    bool failed;
};

/* ---- the plan ---- */

/* The unit of a rank's part: a cache line, so that no line is shared by two ranks, or
 * LINE rows where gradients are computed by rows. */
static struct bucket part_of(const struct reducer *r, struct bucket b, int rank)
{
    size_t row = factors_row(r->factors, b.offset);
    return bucket_part(b, row > 0 ? row * LINE : LINE, rank, r->size);
}

/* The sizes of all ranks' parts, in r->counts. */
static void count_parts(struct reducer *r, struct bucket b)
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
        r->pieces[i] = part_of(r, of[i], r->rank);
        r->starts[i + 1] = r->starts[i] + (r->pieces[i].count + LINE - 1) / LINE * LINE;
    }
}

/* How many rows of the layer at `offset` are computed from factors at once; 0: it has
 * no factors. */
static size_t rows_at(const struct reducer *r, size_t offset)
{
    size_t row = factors_row(r->factors, offset), rows = row > 0 ? ROOM / row : 0;
    return row * (rows < ROWS ? ROWS : rows / LINE * LINE);
}

/* A block of sums is used at once, and the next one overwrites it, so that it stays in
 * the second-level cache. With a cache of 1 MiB blocks of 200 to 600 KiB are equally
 * fast; writing and reading the whole gradient costs 1 to 2 % of a step. But each
 * block reads all factors once: with rows of 36 KB, which do not stay in the cache
 * anyway, 16 at a time cost more than they gain. */
static void find_room(struct reducer *r)
{
    for (size_t i = 0; r->factors && i < r->nbuckets; i++) {
        size_t n = rows_at(r, r->buckets[i].offset);
        r->room = n > r->room ? n : r->room;
    }
    if (r->room > 0)
        r->rooms = optim_block((size_t)pool_threads() * r->room);
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
    if (r->settings.factors &&
        factors_create(r->group, r->settings.factors, &r->factors, err) < 0)
        return -1;
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
    r->block = ddp_arena_alloc(group, (HEAD + r->count) * sizeof(float), err);
    if (!r->block) {
        free(r);
        return NULL;
    }
    r->grads = r->block + HEAD;
    r->most = nparams;
    r->buckets = xcalloc(nparams, sizeof *r->buckets);
    r->pieces = xcalloc(nparams, sizeof *r->pieces);
    r->starts = xcalloc(nparams + 1, sizeof *r->starts);
    r->requests = xcalloc(nparams, sizeof(void *));
    r->began = xcalloc(nparams, sizeof *r->began);
    r->counts = xcalloc((size_t)r->size, sizeof *r->counts);
    r->layers = xcalloc(nparams, sizeof *r->layers);
    r->ready = xcalloc(nparams + 2, sizeof *r->ready);
    bool at_once = !settings.overlap && !settings.shard;
    r->nbuckets =
        bucket_plan(params, nparams, settings.first_bytes / sizeof(float),
                    at_once ? SIZE_MAX : settings.cap_bytes / sizeof(float), r->buckets);
    if (find_others(r, params, nparams, err) < 0) {
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
    size_t n;
    const struct param *params = model_params(model, &n);
    struct reducer *r = reducer_create_for(group, params, n, settings, err);
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
    free(r->starts);
    free(r->requests);
    free(r->began);
    free(r->counts);
    free(r->layers);
    free(r->ready);
    free(r->others);
    factors_destroy(r->factors);
    free(r->rooms);
    free(r);
}

size_t reducer_buckets(const struct reducer *r)
{
    return r->others ? 0 : r->nbuckets;
}

bool reducer_shares(const struct reducer *r)
{
    return r->settings.shard;
}

void reducer_plan_text(const struct reducer *r, char *text, size_t size)
{
    bool settled = r->watched == WATCH_STEPS && r->settings.overlap;
    bucket_plan_write(r->buckets, settled ? r->nbuckets : 0, text, size);
}

int reducer_use_plan(struct reducer *r, const char *text)
{
    struct bucket *plan = xcalloc(r->most + 1, sizeof *plan);
    size_t n = bucket_plan_read(text, r->count, r->most, plan);
    if (n > 0 && !r->settings.shard && r->settings.overlap) {
        memcpy(r->buckets, plan, n * sizeof *plan);
        r->nbuckets = n;
        r->watched = WATCH_STEPS;
        cut_pieces(r);
    }
    free(plan);
    return n > 0 ? 0 : -1;
}

float *reducer_grads(struct reducer *r)
{
    return r->grads;
}

void reducer_observe(struct reducer *r, reducer_span_fn span, void *arg)
{
    r->span = span;
    r->span_arg = arg;
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
    if (time_reduction(r, probe, &r->ready[n], err) < 0 ||
        time_reduction(r, r->count, &r->ready[n + 1], err) < 0 ||
        bucket_plan_agreed(r->group, r->layers, r->ready, n, r->buckets, &r->nbuckets,
                           err) < 0)
        return -1;
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
    if (idle && r->factors)
        factors_idle(r->factors);
    return 0;
}

static struct ddp_request *start(struct reducer *r, struct bucket b, bool last)
{
    float *from = r->grads + b.offset;
    if (!r->settings.shard)
        return ddp_iall_reduce(r->group, from - (last ? HEAD : 0),
                               b.count + (last ? HEAD : 0), DDP_F32, DDP_SUM, &r->err);
    count_parts(r, b);
    return ddp_ireduce_scatterv(r->group, from, r->grads + r->pieces[r->started].offset,
                                r->counts, DDP_F32, DDP_SUM, &r->err);
}

static void start_bucket(struct reducer *r)
{
    r->began[r->started] = now_ns();
    r->requests[r->started] =
        start(r, r->buckets[r->started], r->started == r->nbuckets - 1);
    r->failed = r->requests[r->started] == NULL;
    r->started++;
}

static void end_bucket(struct reducer *r)
{
    size_t i = r->ended++;
    if (r->span)
        r->span(i, r->buckets[i].count * sizeof(float), r->began[i], now_ns(),
                r->span_arg);
}

/* Makes progress on the reductions in flight. */
static void make_progress(struct reducer *r)
{
    while (!r->failed && r->ended < r->started) {
        int done = 0;
        r->failed = ddp_test(r->requests[r->ended], &done, &r->err) < 0;
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
    if (r->factors)
        factors_give(r->factors, offset);
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
        r->failed = ddp_wait(r->requests[r->ended], &r->err) < 0;
        if (!r->failed)
            end_bucket(r);
    }
    return r->failed ? err_set(err, "%s", r->err.text) : 0;
}

/* Exchanges the step's numbers; afterwards all ranks have finished backward. */
static int meet(struct reducer *r, struct ddp_err *err)
{
    int64_t began = now_ns();
    int rc = ddp_all_reduce(r->group, r->block, HEAD, DDP_F32, DDP_SUM, err);
    if (r->span && r->others)
        r->span(0, r->count * sizeof(float), began, now_ns(), r->span_arg);
    return rc;
}

int reducer_finish(struct reducer *r, struct step_sums *sums, struct ddp_err *err)
{
    if (r->size == 1)
        return 0;
    memset(r->block, 0, HEAD * sizeof(float));
    memcpy(r->block, sums, sizeof *sums);
    int rc = r->others ? 0 : reduce_rest(r, err);
    if (rc == 0 && r->settings.shard)
        rc = meet(r, err);
    memcpy(sums, r->block, sizeof *sums);
    return rc;
}

/* ---- pieces ---- */

const struct bucket *reducer_pieces(const struct reducer *r, size_t *n)
{
    *n = r->npieces;
    return r->pieces;
}

size_t reducer_start(const struct reducer *r, size_t i)
{
    return r->starts[i];
}

int reducer_gather(struct reducer *r, float *block, struct ddp_err *err)
{
    for (size_t b = 0; b < r->nbuckets && r->size > 1; b++) {
        int64_t began = now_ns();
        count_parts(r, r->buckets[b]);
        TRY(ddp_all_gatherv(r->group, block + r->pieces[b].offset,
                            block + r->buckets[b].offset, r->counts, DDP_F32, err));
        if (r->span && !r->others)
            r->span(b, r->buckets[b].count * sizeof(float), began, now_ns(), r->span_arg);
    }
    return 0;
}

/* ---- where ranks share memory ---- */

bool reducer_direct(const struct reducer *r)
{
    return r->others != NULL;
}

/* Sums that are computed from factors are in this rank's own block. */
float *reducer_sums(const struct reducer *r, size_t i)
{
    size_t at = r->pieces[i].offset;
    return at + (r->others && !rows_at(r, at) ? r->others[r->size - 2] : r->grads);
}

/* Gradients [at, at + n): computed in `room`, or summed in the block of the last of
 * the other ranks. */
static const float *sum_up(struct reducer *r, const struct kernels *k, size_t at,
                           size_t n, float *room)
{
    const float *sum = r->grads + at;
    if (rows_at(r, at)) {
        factors_sum(r->factors, at, n, room);
        return room;
    }
    for (int i = 0; i < r->size - 1; sum = r->others[i++] + at)
        k->add(r->others[i] + at, sum, (int64_t)n);
    return sum;
}

const float *reducer_sum(struct reducer *r, const struct kernels *k, int thread, size_t i,
                         size_t at, size_t n)
{
    if (r->summed)
        return reducer_sums(r, i) + at;
    return sum_up(r, k, r->pieces[i].offset + at, n,
                  r->rooms ? r->rooms + (size_t)thread * r->room : NULL);
}

struct each {
    struct reducer *r;
    reducer_block_fn fn;
    void *arg;
};

/* Threads take the blocks of all pieces in turn. */
static void each_part(int part, int parts, void *arg)
{
    const struct each *e = arg;
    size_t turn = 0;
    for (size_t i = 0; i < e->r->npieces; i++) {
        size_t count = e->r->pieces[i].count;
        size_t rows = rows_at(e->r, e->r->pieces[i].offset);
        size_t block = rows > 0 ? rows : KERNELS_GRAIN;
        for (size_t at = 0; at < count; at += block)
            if (turn++ % (size_t)parts == (size_t)part)
                e->fn(e->r, part, i, at, at + block < count ? block : count - at, e->arg);
    }
}

void reducer_each_block(struct reducer *r, reducer_block_fn fn, void *arg)
{
    pool_run(each_part, &(struct each){r, fn, arg});
}

static void sum_block(struct reducer *r, int thread, size_t i, size_t at, size_t n,
                      void *kernels)
{
    sum_up(r, kernels, r->pieces[i].offset + at, n, reducer_sums(r, i) + at);
}

void reducer_sum_all(struct reducer *r, const struct kernels *k)
{
    if (r->others)
        reducer_each_block(r, sum_block, (void *)(uintptr_t)k);
    r->summed = true;
}

void reducer_scale(struct reducer *r, const struct kernels *k, float by)
{
    if (!r->settings.shard)
        k->scale(r->grads, (int64_t)r->count, by);
    for (size_t i = 0; i < r->npieces && r->settings.shard; i++)
        k->scale(reducer_sums(r, i), (int64_t)r->pieces[i].count, by);
}

int reducer_norm(struct reducer *r, const struct kernels *k, double *norm,
                 struct ddp_err *err)
{
    double sum = 0;
    for (size_t i = 0; i < r->npieces; i++)
        sum += k->sum_squares(reducer_sums(r, i), (int64_t)r->pieces[i].count);
    int rc = ddp_all_reduce(r->group, &sum, 1, DDP_F64, DDP_SUM, err);
    *norm = sqrt(sum);
    return rc;
}

void reducer_give(struct reducer *r, const float *block, size_t at, size_t n)
{
    for (int i = 1; i < r->size; i++) {
        float *there = ddp_arena_of(r->group, block, (r->rank + i) % r->size);
        memcpy(there + at, block + at, n * sizeof *block);
    }
}

int reducer_given(struct reducer *r, struct ddp_err *err)
{
    int64_t began = now_ns();
    int rc = ddp_barrier(r->group, err);
    if (r->span)
        r->span(1, r->count * sizeof(float), began, now_ns(), r->span_arg);
    return rc;
}
