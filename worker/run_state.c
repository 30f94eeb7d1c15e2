/* worker/run_state.c - loads and saves a run's state: checkpoints on disk, and in the
 * memory of the hosts (run.h)
 */
#include "worker/run.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/scoped.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { MARK_MS = 1000 }; /* between two lines for the launcher */

static struct reducer *reducer_of(const struct run *run)
{
    return run->engine_type->reducer ? run->engine_type->reducer(run->engine) : NULL;
}

/* ---- loading ---- */

static int load_disk(struct run *run, struct ddp_err *err)
{
    const struct train_config *c = run->c;
    run->resumed = c->resume && (!c->resume_if_there || checkpoint_exists(c->resume));
    run->resumed_whole = run->resumed;
    const char *place = run->resumed ? c->resume : c->init;
    struct ddp_err passed_over;
    if (!place)
        return 0;
    if (checkpoint_load(place, &run->replica, &run->state, &run->resumed_whole,
                        &passed_over, err) < 0)
        return err_prefix(err, run->resumed ? "--resume" : "--init");
    if (*passed_over.text)
        run_tell(run, "resumed", "not the newest: %s", passed_over.text);
    /* the seed is part of the state, as is what was drawn from it */
    bool fixed = config_given(c, "seed") || run->data.task == TASK_REGRESS;
    if (run->resumed_whole && fixed && run->state.seed != c->seed)
        return err_set(
            err, "cannot resume '%s': it was begun with --seed %" PRIu64 ", not %" PRIu64,
            c->resume, run->state.seed, c->seed);
    return 0;
}

/* Rank 0 has what is on disk, if there is anything: is there something newer? */
static int load_peers(struct run *run, struct ddp_err *err)
{
    bool loaded;
    if (!run->c->peer_steps)
        return 0;
    run->culprit = 0;
    if (!reducer_of(run))
        return err_set(err, "the engine '%s' has no --peer-checkpoint",
                       run->engine_type->name);
    run->peers = peers_create(run->group, reducer_of(run), &run->culprit, err);
    if (!run->peers || peers_load(run->peers, &run->replica, &run->state, &loaded,
                                  &run->culprit, err) < 0)
        return -1;
    run->from_memory = loaded;
    run->resumed |= loaded;
    run->resumed_whole |= loaded;
    return 0;
}

/* All ranks start with rank 0's weights, optimiser and position. */
static int share(struct run *run, struct ddp_err *err)
{
    const char *from = run->c->resume;
    uint8_t whole = run->resumed_whole;
    TRY(ddp_broadcast(run->group, &run->state, sizeof run->state, DDP_U8, 0, err));
    TRY(ddp_broadcast(run->group, &whole, 1, DDP_U8, 0, err));
    run->resumed_whole = whole;
    if (run->state.position > run->data.train.n)
        return err_set(err,
                       "cannot resume%s%s%s: the state is at sample %" PRIu64
                       " of an epoch, and these data have %zu; --init takes the weights "
                       "alone",
                       from ? " '" : "", from ? from : "", from ? "'" : "",
                       run->state.position, run->data.train.n);
    return replica_broadcast(run->group, &run->replica, err);
}

/* Gives the engine the choices of the earlier run. */
static int push(struct run *run, struct ddp_err *err)
{
    const struct train_state *s = &run->state;
    bool planned = run->resumed_whole && s->ranks == run->size && *s->buckets;
    TRY(run->engine_type->push(run->engine, err));
    if (planned && !config_given(run->c, "bucket-mb") && reducer_of(run))
        reducer_use_plan(reducer_of(run), s->buckets); /* of another model: ignored */
    return 0;
}

int run_resume(struct run *run, struct ddp_err *err)
{
    int rc = run->rank == 0 ? load_disk(run, err) : 0;
    TRY(run_agree_late(run, rc, &run->culprit, err));
    TRY(load_peers(run, err));
    run->culprit = 0;
    TRY(share(run, err));
    TRY(push(run, err));
    run->culprit = -1;
    return 0;
}

/* ---- saving ---- */

static struct train_state state_of(const struct run *run)
{
    struct train_state s = run->state;
    s.ranks = run->size;
    *s.buckets = '\0'; /* it may have been that of an engine that plans them */
    if (reducer_of(run))
        reducer_plan_text(reducer_of(run), s.buckets, sizeof s.buckets);
    return s;
}

/* "NAME=1,2,3", from which the same floats can be read again */
static void put_numbers(struct strv *meta, const char *name, const float *v, int n)
{
    char *text = xasprintf("%s=%.9g", name, (double)v[0]);
    for (int i = 1; i < n; i++)
        xappendf(&text, ",%.9g", (double)v[i]);
    strv_push_nodup(meta, text);
}

/* What another program may want to know of the run. */
static struct strv metadata(const struct run *run)
{
    const struct dataset *data = &run->data;
    struct strv meta = {0};
    strv_pushf(&meta, "batch_size=%d", run->c->how.batch_size);
    strv_pushf(&meta, "train_samples=%zu", data->train.n);
    if (data->normal.channels > 0) {
        put_numbers(&meta, "pixel_mean", data->normal.mean, data->normal.channels);
        put_numbers(&meta, "pixel_std", data->normal.std, data->normal.channels);
    }
    return meta;
}

int run_save(struct run *run, struct ddp_err *err)
{
    if (!run->saver)
        return 0;
    TRY(run->engine_type->pull(run->engine, err));
    const struct train_state at = state_of(run);
    SCOPED(strv_finish) struct strv meta = metadata(run);
    return saver_start(run->saver, &run->replica, &at, &meta, &run->culprit, err);
}

int run_keep(struct run *run, struct ddp_err *err)
{
    if (!run->peers)
        return 0;
    const struct train_state at = state_of(run);
    if (peers_save(run->peers, &run->replica, &at, err) < 0 ||
        (run->c->peer_steps == 1 && peers_finish(run->peers, err) < 0))
        return -1;
    run->kept_whole = run->kept; /* peers_save() has waited for it */
    run->kept = run->state.step;
    return 0;
}

static void say(struct run *run, const char *what, uint64_t step)
{
    if (run->progress.out) {
        progress_say(&run->progress, "%s %" PRIu64, what, step);
    } else {
        printf("%s %" PRIu64 "\n", what, step);
        fflush(stdout);
    }
}

void run_mark_begin(struct run *run)
{
    const char *restarts = getenv("TORCHELASTIC_RESTART_COUNT");
    if (run->rank == 0 && run->marked != UINT64_MAX && restarts && atoi(restarts) > 0)
        say(run, "ddprun.resumed", run->state.step);
}

void run_mark_end(struct run *run)
{
    if (run->marked != UINT64_MAX && (run->rank == 0 || run->rank == run->size - 1))
        say(run, "ddprun.step", run->state.step);
}

void run_mark(struct run *run)
{
    uint64_t step = run->saver ? saver_written(run->saver) : 0;
    step = step > run->kept_whole ? step : run->kept_whole;
    if (run->rank != 0 || step <= run->marked || now_ms() < run->marked_ms + MARK_MS)
        return;
    run->marked = step;
    run->marked_ms = now_ms();
    say(run, "ddprun.checkpoint", step);
}
