/* worker/ddp/parallel.c - include/ddprun/ddp.h: the reducer and the sharded optimiser for
 * other programs
 *
 * The parameters are in one block, each padded to whole cache lines. A gradient is
 * multiplied by the rank's number of samples when it is ready, and the sums are divided
 * by the samples of all ranks, which are sent with them.
 *
 * The block is in host memory or on a GPU (device.h). Of a GPU's block the host has a
 * copy only during the calls that need one, such as those for checkpoints.
 *
 * ddp-train uses the same parts (reducer.h, replica.h, saver.h, peers.h), but not these
 * functions; doc/tour.md says why.
 */
#include "include/ddprun/ddp.h"

#include "common/err.h"
#include "common/mem.h"
#include "worker/ddp/device.h"
#include "worker/ddp/kept.h"
#include "worker/ddp/peers.h"
#include "worker/ddp/reducer.h"
#include "worker/ddp/saver.h"
#include "worker/gpu/engine_object.h"

#include <float.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { LINE = 16 };

struct ddp_parallel {
    struct ddp_group *group;  /* borrowed */
    struct ddp_param *params; /* owned: as passed in, NULLs included */
    struct param *blocks;     /* owned: in the block, with padding, */
    struct param *shapes;     /* and without */
    bool *ready;              /* owned: of this step */
    size_t n;
    bool begun;     /* the first step: the optimiser may be sharded from now on */
    bool open;      /* a step has begun and not ended */
    bool swapped;   /* the weights and their average */
    size_t pending; /* all gradients from this one on are ready */
    size_t samples;
    size_t unknown; /* what ddp_parallel_ready() has got that is no parameter; 0: none */
    float clip_norm;
    struct reducer *reducer;
    struct optim optim;
    struct replica state;
    const char *place;   /* borrowed: of checkpoints */
    struct saver *saver; /* owned; NULL: no checkpoints */
    struct peers *peers; /* owned; NULL before ddp_parallel_restore() */
    bool cannot_restart; /* so it has set none */
    const struct device_type *on;
    struct device *device;   /* owned */
    struct rank_piece whole; /* the piece of a rank that updates everything */
    bool failed;             /* the device has, */
    struct ddp_err why;      /* for this reason */
};

/* NCCL has only equal parts, so each parameter is padded to a line for each rank. */
static void lay_out(struct ddp_parallel *p, const struct ddp_param *params, size_t n,
                    bool cuda)
{
    size_t unit = cuda ? LINE * (size_t)ddp_group_size(p->group) : LINE;
    p->n = n;
    p->params = xcalloc(n, sizeof *p->params);
    p->blocks = xcalloc(n, sizeof *p->blocks);
    p->shapes = xcalloc(n, sizeof *p->shapes);
    p->ready = xcalloc(n, sizeof *p->ready);
    memcpy(p->params, params, n * sizeof *params);
    for (size_t i = 0, at = 0; i < n; at += p->blocks[i++].count) {
        size_t count = params[i].count;
        p->shapes[i] = (struct param){params[i].name, 1, {(int)count}, at, count};
        p->blocks[i] = (struct param){.name = params[i].name,
                                      .ndim = 2, /* each may end a bucket */
                                      .offset = at,
                                      .count = (count + unit - 1) / unit * unit};
    }
}

static int make_saver(struct ddp_parallel *p, const char *place, struct ddp_err *err)
{
    bool leads = ddp_group_rank(p->group) == 0;
    TRY(parallel_check_names(p->params, p->n, err));
    p->place = place;
    p->saver = saver_create(p->group, place, SAVER_SHARD_BYTES);
    return replica_agree(p->group, leads ? saver_prepare(p->saver, NULL, NULL, err) : 0,
                         NULL, err);
}

static int open_device(struct ddp_parallel *p, const struct ddp_parallel_options *o,
                       struct ddp_err *err)
{
    struct device_job job = {.group = p->group,
                             .reducer = p->reducer,
                             .params = p->params,
                             .blocks = p->blocks,
                             .n = p->n,
                             .floats = p->state.floats,
                             .buckets = reducer_plan(p->reducer),
                             .nbuckets = reducer_buckets(p->reducer),
                             .pieces = &p->whole,
                             .npieces = 1,
                             .optim = &p->optim,
                             .options = o};
    p->whole.at.count = p->state.floats;
    if (!o->replicated)
        job.pieces = reducer_pieces(p->reducer, &job.npieces);
    p->device = p->on->open(&job, err);
    return p->device ? 0 : -1;
}

static int make(struct ddp_parallel *p, const struct ddp_parallel_options *o,
                struct ddp_err *err)
{
    const struct reducer_settings settings = {.first_bytes = o->first_bytes,
                                              .cap_bytes = o->bytes,
                                              .overlap = true,
                                              .timed = o->buckets_by_time,
                                              .shard = !o->replicated,
                                              .elsewhere = o->cuda,
                                              .direct = !o->replicated && !o->cuda};
    const size_t floats = p->blocks[p->n - 1].offset + p->blocks[p->n - 1].count;
    TRY(parallel_agree(p->group, p->params, p->n, o, err));
    p->on = o->cuda ? engine_object_symbol("ddp_device", err) : &device_host;
    if (!p->on)
        err_prefix(err, "options.cuda");
    else
        p->reducer = reducer_create_for(p->group, p->blocks, p->n, settings, err);
    TRY(parallel_refuse(p->group, p->reducer ? 0 : -1, err));
    p->state = (struct replica){.model = "ddp.h",
                                .params = p->shapes,
                                .nparams = p->n,
                                .floats = floats,
                                .optim = &p->optim};
    optim_init(&p->optim, optim_find(o->optimiser),
               (struct optim_settings){o->momentum, o->decay, o->beta2, o->ema},
               kernels_get(NULL, PRECISION_FP32, err), floats);
    for (size_t i = 0; i < p->n; i++)
        if (p->params[i].no_decay)
            optim_exempt(&p->optim, p->blocks[i].offset, p->blocks[i].count);
    p->clip_norm = o->clip_norm;
    TRY(open_device(p, o, err));
    return o->checkpoint ? make_saver(p, o->checkpoint, err) : 0;
}

struct ddp_parallel *ddp_parallel_create(struct ddp_group *g, struct ddp_param *params,
                                         size_t n,
                                         const struct ddp_parallel_options *options,
                                         struct ddp_err *err)
{
    struct ddp_parallel_options o = options ? *options : (struct ddp_parallel_options){0};
    o.optimiser = o.optimiser ? o.optimiser : "sgd";
    o.first_bytes = o.first_bytes ? o.first_bytes : BUCKET_FIRST_BYTES;
    o.bytes = o.bytes ? o.bytes : BUCKET_BYTES;
    bool fine =
        parallel_check(params, n, &o, err) == 0 && kernels_get(NULL, PRECISION_FP32, err);
    if (parallel_refuse(g, fine ? 0 : -1, err) < 0)
        return NULL;
    struct ddp_parallel *p = xcalloc(1, sizeof *p);
    p->group = g;
    lay_out(p, params, n, o.cuda);
    if (make(p, &o, err) < 0 || ddp_parallel_share(p, err) < 0) {
        ddp_parallel_destroy(p);
        return NULL;
    }
    float *weights, *grads;
    p->on->blocks(p->device, &weights, &grads);
    for (size_t i = 0; i < n; i++) {
        size_t at = p->blocks[i].offset;
        if (!params[i].weight)
            params[i].weight = weights + at;
        if (!params[i].grad)
            params[i].grad = grads + at;
    }
    return p;
}

void ddp_parallel_destroy(struct ddp_parallel *p)
{
    if (!p)
        return;
    if (p->peers)
        peers_end(p->peers);
    peers_destroy(p->peers);
    saver_destroy(p->saver);
    if (p->on)
        p->on->close(p->device, p->failed || p->open);
    reducer_destroy(p->reducer);
    optim_finish(&p->optim);
    free(p->params);
    free(p->blocks);
    free(p->shapes);
    free(p->ready);
    free(p);
}

/* ---- the state on the host ---- */

/* The result of a call of the device. */
static int noted(struct ddp_parallel *p, int rc)
{
    p->failed = p->failed || rc < 0;
    return rc;
}

/* The weights, and with `states` this rank's part of the optimiser, are on the host until
 * give_back(). */
static int fetch(struct ddp_parallel *p, bool states, struct ddp_err *err)
{
    p->state.weights = p->on->fetch(p->device, states, err);
    return noted(p, p->state.weights ? 0 : -1);
}

/* `changed`: the weights were, on the host. */
static int give_back(struct ddp_parallel *p, bool changed, struct ddp_err *err)
{
    p->state.weights = NULL;
    return noted(p, p->on->give_back(p->device, changed, err));
}

int ddp_parallel_share(struct ddp_parallel *p, struct ddp_err *err)
{
    return noted(p, p->on->share(p->device, err));
}

/* Between steps, with the weights in place. */
static int check_between(const struct ddp_parallel *p, const char *what,
                         struct ddp_err *err)
{
    if (p->open)
        return err_set(err, "ddp_parallel_%s() in a step: ddp_parallel_step() ends it",
                       what);
    return p->swapped ? err_set(err, "the weights are averages: first put them back by "
                                     "ddp_parallel_swap_average()")
                      : 0;
}

int ddp_parallel_begin(struct ddp_parallel *p, size_t samples, struct ddp_err *err)
{
    TRY(check_between(p, "begin", err));
    /* before the first step they are loaded whole */
    reducer_keep_states(p->reducer, &p->optim);
    memset(p->ready, 0, p->n * sizeof *p->ready);
    p->begun = p->open = true;
    p->samples = samples;
    p->pending = p->n;
    return noted(p, p->on->begin(p->device, samples == 0, err));
}

void ddp_parallel_ready(struct ddp_parallel *p, size_t i)
{
    if (i >= p->n)
        p->unknown = i;
    if (i >= p->n || !p->open || p->samples == 0 || p->ready[i])
        return;
    p->ready[i] = true;
    if (!p->failed) /* ddp_parallel_step() returns the error */
        noted(p, p->on->take(p->device, i, (float)p->samples, &p->why));
    while (!p->failed && p->pending > 0 && p->ready[p->pending - 1])
        noted(p, p->on->reduce(p->device, &p->blocks[--p->pending], &p->why));
}

/* The last parameter whose gradient is missing; n: none. The other ranks wait for this
 * one, so the step is completed for them without it. */
static size_t find_missing(struct ddp_parallel *p)
{
    size_t missing = p->n;
    for (size_t i = p->n; p->samples > 0 && i-- > 0;)
        if (!p->ready[i]) {
            missing = missing == p->n ? i : missing;
            ddp_parallel_ready(p, i);
        }
    return missing;
}

int ddp_parallel_step(struct ddp_parallel *p, float lr, struct ddp_step *step,
                      struct ddp_err *err)
{
    if (!p->open)
        return err_set(err, "ddp_parallel_step() without ddp_parallel_begin()");
    struct ddp_step unwanted = {0};
    step = step ? step : &unwanted;
    bool first = ddp_group_rank(p->group) == 0;
    size_t missing = find_missing(p);
    struct step_sums sums = {.loss = p->samples ? step->loss * (float)p->samples : 0,
                             .correct = (float)p->samples,
                             .bad = missing < p->n || p->unknown > 0 || p->failed,
                             .lr = first ? lr : 0};
    p->open = false;
    TRY(reducer_finish(p->reducer, &sums, err));
    if (p->failed)
        return err_set(err, "%s", p->why.text);
    p->failed = sums.bad > 0; /* sums on the GPUs may never end */
    if (p->unknown > 0)
        return err_set(err, "ddp_parallel_ready(p, %zu) of %zu parameters", p->unknown,
                       p->n);
    if (missing < p->n)
        return err_set(err, "the gradient of '%s' is missing: ddp_parallel_ready(p, %zu)",
                       p->params[missing].name ? p->params[missing].name : "", missing);
    if (sums.bad > 0)
        return err_set(err, "a gradient is missing on another rank, its "
                            "ddp_parallel_ready() got no parameter's number, or its GPU "
                            "has failed");
    step->samples = (size_t)sums.correct;
    step->loss = step->samples ? sums.loss / sums.correct : 0;
    step->norm = 0;
    double norm;
    if (step->samples == 0)
        return noted(p, p->on->step(p->device, NULL, &norm, err));
    if (!(sums.lr >= 0 && sums.lr <= FLT_MAX))
        return err_set(err, "the learning rate is %g", (double)sums.lr);
    const struct step_rule how = {
        .lr = sums.lr, .by = 1 / sums.correct, .clip_norm = (double)p->clip_norm};
    TRY(noted(p, p->on->step(p->device, &how, &norm, err)));
    step->norm = (float)norm;
    return p->peers ? peers_progress(p->peers, err) : 0;
}

int ddp_parallel_swap_average(struct ddp_parallel *p, struct ddp_err *err)
{
    if (!p->optim.states[OPTIM_AVERAGE] || p->optim.counts.steps == 0)
        return err_set(err, "there is no average: it needs options.ema and a step");
    if (!p->swapped)
        TRY(check_between(p, "swap_average", err));
    TRY(fetch(p, !p->swapped, err));
    if (!p->swapped)
        TRY(reducer_gather_states(p->reducer, &p->optim, err));
    optim_swap_average(&p->optim, p->state.weights);
    TRY(give_back(p, true, err));
    p->swapped = !p->swapped;
    if (!p->swapped)
        reducer_forget_states(&p->optim);
    return 0;
}

/* ---- checkpoints ---- */

/* A load reports step 0 if there is no checkpoint, so none is saved as step 0. */
static int check_save(const struct ddp_parallel *p, const char *what, uint64_t step,
                      struct ddp_err *err)
{
    int other;
    size_t i;
    TRY(check_between(p, what, err));
    TRY(replica_compare(p->group, &step, 1, &other, &i, err));
    if (other > 0)
        return err_set(err,
                       "ddp_parallel_%s(): rank %d has another step than rank 0; here it "
                       "is %" PRIu64,
                       what, other, step);
    if (step > 0)
        return 0;
    return err_set(err, "ddp_parallel_%s() at step 0: steps are counted from 1", what);
}

static struct train_state now_at(const struct ddp_parallel *p, uint64_t step)
{
    return (struct train_state){.step = step, .ranks = ddp_group_size(p->group)};
}

/* Rank 0 loads a state from disk, or one newer than *step from the hosts' memory, and
 * copies it to all. */
static int load(struct ddp_parallel *p, uint64_t *step, bool disk, struct ddp_err *err)
{
    struct train_state at = {.step = *step};
    struct ddp_err ignored, why;
    int rc = 0;
    bool whole = true, loaded = false;
    err = err ? err : &why; /* checkpoint_load() needs one */
    TRY(fetch(p, true, err));
    if (disk && ddp_group_rank(p->group) == 0 && checkpoint_exists(p->place)) {
        loaded = true;
        rc = checkpoint_load(p->place, &p->state, &at, &whole, &ignored, err);
    }
    TRY(disk ? replica_agree_late(p->group, rc, NULL, NULL, NULL, err)
             : peers_load(p->peers, &p->state, &at, &loaded, NULL, err));
    uint64_t got[2] = {loaded, at.step};
    TRY(ddp_broadcast(p->group, got, 2, DDP_I64, 0, err));
    *step = got[1];
    if (got[0])
        TRY(replica_broadcast(p->group, &p->state, err));
    return give_back(p, got[0], err);
}

int ddp_parallel_load(struct ddp_parallel *p, uint64_t *step, struct ddp_err *err)
{
    if (!p->saver)
        return err_set(err, "ddp_parallel_load(): the options have no checkpoint");
    if (p->begun)
        return err_set(err, "ddp_parallel_load() comes before the first step");
    *step = 0;
    return load(p, step, true, err);
}

int ddp_parallel_save(struct ddp_parallel *p, uint64_t step, struct ddp_err *err)
{
    const struct train_state at = now_at(p, step);
    if (!p->saver)
        return err_set(err, "ddp_parallel_save(): the options have no checkpoint");
    TRY(check_save(p, "save", step, err));
    TRY(fetch(p, true, err));
    int rc = reducer_gather_states(p->reducer, &p->optim, err);
    if (rc == 0)
        rc = saver_start(p->saver, &p->state, &at, NULL, NULL, err);
    reducer_forget_states(&p->optim);
    give_back(p, false, NULL);
    return rc;
}

int ddp_parallel_restore(struct ddp_parallel *p, uint64_t *step, struct ddp_err *err)
{
    const uint64_t offered = kept_is_offered();
    int other;
    size_t i;
    if (p->peers || p->cannot_restart || p->begun)
        return err_set(err, "ddp_parallel_restore() comes before the first step, once");
    TRY(replica_compare(p->group, &offered, 1, &other, &i, err));
    p->cannot_restart = !offered && other == 0;
    if (p->cannot_restart)
        return 0;
    p->peers = peers_create(p->group, p->reducer, NULL, err);
    return p->peers ? load(p, step, false, err) : -1;
}

int ddp_parallel_keep(struct ddp_parallel *p, uint64_t step, struct ddp_err *err)
{
    const struct train_state at = now_at(p, step);
    if (!p->peers && !p->cannot_restart)
        return err_set(err, "ddp_parallel_keep() needs ddp_parallel_restore() before");
    TRY(check_save(p, "keep", step, err));
    if (!p->peers)
        return 0;
    TRY(fetch(p, true, err));
    int rc = peers_save(p->peers, &p->state, &at, err);
    give_back(p, false, NULL);
    return rc;
}

int ddp_parallel_finish(struct ddp_parallel *p, struct ddp_err *err)
{
    if (p->saver)
        TRY(saver_finish(p->saver, NULL, err));
    return p->peers ? peers_finish(p->peers, err) : 0;
}

int ddp_parallel_check(struct ddp_parallel *p, struct ddp_err *err)
{
    uint64_t sum;
    TRY(fetch(p, false, err));
    int rc = replica_check(p->group, &p->state, &sum, err);
    give_back(p, false, NULL);
    return rc;
}
