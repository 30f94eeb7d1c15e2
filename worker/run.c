/* worker/run.c - see run.h */
#include "worker/run.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/output_path.h"
#include "worker/config_agreement.h"
#include "worker/ddp/replica.h"
#include "worker/group/env.h"
#include "worker/report/plot.h"
#include "worker/safetensors.h"
#include "worker/signals.h"

#include <inttypes.h>
#include <libgen.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* How long to wait for the culprit to print its error, and then to exit. */
enum { CULPRIT_MS = 10000, GONE_MS = 50 };

enum { MARK_MS = 1000 }; /* between two lines for the launcher */

struct run *run_create(const struct train_config *config)
{
    struct run *run = xcalloc(1, sizeof *run);
    run->c = config;
    run->began_ns = now_ns();
    run->culprit = -1;
    run->state = (struct train_state){.seed = config->seed, .epoch = 1};
    const char *restarts = getenv("TORCHELASTIC_MAX_RESTARTS");
    run->marked = restarts && atoi(restarts) > 0 ? 0 : UINT64_MAX;
    return run;
}

void run_destroy(struct run *run)
{
    if (!run)
        return;
    saver_destroy(run->saver);
    trace_destroy(run->trace);
    history_finish(&run->history);
    metrics_close(&run->metrics, NULL);
    free(run->in_order);
    sampler_finish(&run->sampler);
    if (run->engine)
        run->engine_type->close(run->engine);
    optim_finish(&run->optim);
    model_destroy(run->model);
    dataset_finish(&run->data);
    ddp_group_destroy(run->group);
    peers_destroy(run->peers);
    free(run);
}

bool run_is_culprit(const struct run *run)
{
    return run->culprit < 0 || run->culprit == run->rank;
}

void run_wait_for_culprit(struct run *run)
{
    struct ddp_err ignored;
    /* It has left the group and is about to exit. */
    if (ddp_monitored_barrier(run->group, CULPRIT_MS, &ignored) < 0)
        poll(NULL, 0, GONE_MS);
}

int run_exit_code(const struct run *run)
{
    if (run->end == RUN_STOPPED)
        return run->c->checkpoint && run->stopped_by != SIGINT
                   ? EXIT_REQUEUE
                   : 128 + run->stopped_by; /* the same on every rank */
    if (isfinite(run->c->target) && run->end != RUN_TARGET_REACHED)
        return EXIT_BELOW_TARGET;
    return 0;
}

/* ---- opening ---- */

/* What a rank does before it joins the group. */
static int prepare(struct run *run, struct ddp_err *err)
{
    const struct train_config *c = run->c;
    kernels_set_threads(c->threads);
    run->kernels = kernels_get_at(c->kernels, c->precision, err);
    if (!run->kernels)
        return -1;
    int rc = c->model->task == TASK_TOKENS
                 ? tokens_load(c->data, c->model->context, c->model->vocabulary,
                               &run->data, err)
                 : dataset_load(c->data, &c->normalise, c->seed, &run->data, err);
    if (rc < 0)
        return -1;
    run->answers = run->data.task == TASK_TOKENS ? run->data.shape.W : 1;
    run->model =
        model_create(c->model->name, run->data.shape, c->batch_size, run->kernels, err);
    if (!run->model)
        return -1;
    optim_init(&run->optim, c->optim, c->optim_settings, run->kernels,
               model_param_count(run->model));
    return 0;
}

static int join(struct run *run, struct ddp_err *err)
{
    size_t floats = run->model ? model_param_count(run->model) : 0;
    struct ddp_group_options options = {
        .rank = -1,
        /* gradients, weights, and at most as much for factors (worker/ddp/factors.c) */
        .arena_bytes = 3 * floats * sizeof(float) + (1 << 20),
        .backend = run->c->backend,
        .timeout_ms = run->c->group_timeout_ms,
    };
    run->group = ddp_group_init(&options, err);
    if (!run->group)
        return -1;
    run->rank = ddp_group_rank(run->group);
    run->size = ddp_group_size(run->group);
    return 0;
}

static int load_checkpoint(struct run *run, struct ddp_err *err)
{
    const struct train_config *c = run->c;
    if (!c->resume || (c->resume_if_there && !checkpoint_exists(c->resume)))
        return 0;
    struct ddp_err passed_over;
    if (checkpoint_load(c->resume, &run->state, run->model, &run->optim,
                        &run->resumed_whole, &passed_over, err) < 0)
        return -1;
    if (*passed_over.text)
        progress_say(&run->progress, "resumed     not the newest: %s", passed_over.text);
    run->resumed = true;
    /* the seed goes on, and so does what was drawn from it */
    bool fixed = c->seed_given || run->data.task == TASK_REGRESS;
    if (run->resumed_whole && fixed && run->state.seed != c->seed)
        return err_set(
            err, "cannot resume '%s': it was begun with --seed %" PRIu64 ", not %" PRIu64,
            c->resume, run->state.seed, c->seed);
    return 0;
}

/* Check output files now, so that they do not fail after hours of training. */
static int check_place(const char *what, const char *path, enum output_path_use use,
                       struct ddp_err *err)
{
    const char *why = path ? output_path_check(path, use) : NULL;
    return why ? err_set(err, "cannot write the %s '%s': %s", what, path, why) : 0;
}

/* With --steps they may be fewer. */
static int epochs_of(const struct run *run)
{
    const struct train_config *c = run->c;
    uint64_t each = (uint64_t)run->size * (uint64_t)(c->batch_size * c->accumulate);
    uint64_t steps = (run->data.train.n + each - 1) / each;
    uint64_t epochs = (c->steps + steps - 1) / steps;
    return c->steps && epochs < (uint64_t)c->epochs ? (int)epochs : c->epochs;
}

/* Files that only rank 0 opens. */
static int prepare_files(struct run *run, struct ddp_err *err)
{
    const struct train_config *c = run->c;
    if (run->rank != 0)
        return 0;
    progress_init(&run->progress, stdout, c->progress, epochs_of(run));
    run->progress.each = run->answers;
    if (run->data.task != TASK_CLASSIFY)
        run->progress.unit = run->data.task == TASK_TOKENS ? "tokens" : "samples";
    if (c->checkpoint &&
        (checkpoint_prepare(c->checkpoint, err) < 0 || saver_lock(run->saver, err) < 0))
        return -1;
    if ((c->plot_given &&
         check_place("picture", c->plot, OUTPUT_PATH_WRITTEN, err) < 0) ||
        check_place("logits", c->logits, OUTPUT_PATH_REPLACED, err) < 0 ||
        check_place("trace", c->trace, OUTPUT_PATH_WRITTEN, err) < 0)
        return -1;
    return load_checkpoint(run, err);
}

static bool piece_of(const void *run, size_t i, struct rank_piece *out)
{
    const struct run *r = run;
    return r->engine_type->piece(r->engine, i, out);
}

static struct peers_run peers_run_of(struct run *run)
{
    struct peers_run what = {.model = model_type(run->model)->name,
                             .weights = model_weights(run->model),
                             .floats = model_param_count(run->model),
                             .optim = &run->optim,
                             .piece = piece_of,
                             .of = run};
    what.buffers = model_buffer_block(run->model, &what.nbuffers);
    return what;
}

static struct peers_at peers_at_of(const struct run *run)
{
    const struct train_state *s = &run->state;
    struct peers_at at = {s->step, s->seed, s->position, s->epoch, run->size, ""};
    if (run->engine_type->plan_text)
        run->engine_type->plan_text(run->engine, at.buckets, sizeof at.buckets);
    return at;
}

/* From the memory of the hosts. */
static void set_state(struct train_state *s, const struct peers_at *at)
{
    *s = (struct train_state){.step = at->step,
                              .seed = at->seed,
                              .epoch = at->epoch,
                              .position = at->position,
                              .ranks = at->ranks};
    memcpy(s->buckets, at->buckets, sizeof s->buckets);
}

/* Rank 0 has what is on disk, if there is anything: is there something newer? */
static int load_peers(struct run *run, struct ddp_err *err)
{
    bool loaded;
    const struct peers_run what = peers_run_of(run);
    struct peers_at at = {.step = run->state.step};
    if (!run->c->peer_steps)
        return 0;
    run->culprit = 0;
    if (!run->engine_type->piece)
        return err_set(err, "the engine '%s' has no --peer-checkpoint",
                       run->engine_type->name);
    run->peers = peers_create(run->group, err);
    if (replica_agree(run->group, run->peers ? 0 : -1, &run->culprit, err) < 0)
        return -1;
    int rc = peers_load(run->peers, &what, &at, &loaded, err);
    if (replica_agree(run->group, rc, &run->culprit, err) < 0)
        return -1;
    if (loaded && run->rank == 0)
        set_state(&run->state, &at);
    run->from_memory = loaded;
    run->resumed |= loaded;
    run->resumed_whole |= loaded;
    return 0;
}

/* All ranks start with rank 0's weights, optimiser and position. */
static int broadcast_start(struct run *run, struct ddp_err *err)
{
    uint8_t whole = run->resumed_whole;
    if (ddp_broadcast(run->group, &run->state, sizeof run->state, DDP_U8, 0, err) < 0 ||
        ddp_broadcast(run->group, &whole, 1, DDP_U8, 0, err) < 0)
        return -1;
    run->resumed_whole = whole;
    if (run->state.position > run->data.train.n)
        return err_set(err,
                       "cannot resume '%s': it stands at sample %" PRIu64
                       " of an epoch, and these data have %zu",
                       run->c->resume, run->state.position, run->data.train.n);
    return replica_broadcast(run->group, run->model, &run->optim, err);
}

/* As the launcher numbers them; alone on its host a rank is the first there. */
static int local_rank(int rank)
{
    struct env_place place;
    struct ddp_err ignored;
    if (env_place(&place, env_get, &ignored) < 0 || place.local_rank < 0)
        return rank;
    return place.local_rank;
}

static int open_engine(struct run *run, struct ddp_err *err)
{
    const struct train_config *c = run->c;
    struct engine_job job = {
        .group = run->group,
        .model = run->model,
        .optim = &run->optim,
        .kernels = run->kernels,
        .precision = c->precision,
        .data = &run->data,
        .batch_size = c->batch_size,
        .threads = c->threads,
        .local_rank = local_rank(run->rank),
        .timeout_ms = c->group_timeout_ms,
        .dropout = c->dropout,
        .sync_norms = c->sync_norms,
        .augment = c->augment,
        .buckets = {c->first_bucket_bytes, c->bucket_bytes, c->overlap, !c->bucket_given,
                    c->shard_optimizer && run->size > 1, !c->bucket_given && c->overlap},
        .accumulate = c->accumulate,
        .clip_norm = c->clip_norm,
        .skip_bad = c->skip_bad,
        .stages = c->stages,
        .micro = c->micro_batches,
        .profile = c->profile,
        .tune = c->tune,
    };
    if (c->trace)
        job.trace = run->trace = trace_create(run->rank);
    run->engine_type =
        engine_find(c->engine, run->group, run->engine_why, sizeof run->engine_why, err);
    if (!run->engine_type) {
        run->culprit = 0; /* rank 0 prints what all ranks know */
        return -1;
    }
    if (run->engine_type == &engine_cpu && c->profile) {
        run->culprit = 0;
        return err_set(err, "the engine 'cpu' has no --profile: use --trace, or perf");
    }
    run->engine = run->engine_type->open(&job, err);
    return replica_agree(run->group, run->engine ? 0 : -1, &run->culprit, err);
}

/* Set up what must not count as training time. */
static int prepare_training(struct run *run, struct ddp_err *err)
{
    int mine[2], all[2];
    const struct engine_type *type = run->engine_type;
    sampler_shares(&run->sampler, mine, all);
    if (type->device)
        type->device(run->engine, &run->device);
    if (!type->prepare || run->state.epoch > run->c->epochs)
        return 0;
    return type->prepare(run->engine, mine[0], all[0], err) < 0
               ? -1
               : type->prepare(run->engine, mine[1], all[1], err);
}

int run_open(struct run *run, struct ddp_err *err)
{
    const struct train_config *c = run->c;
    struct ddp_err why;
    int rc = prepare(run, &why);
    if (join(run, err) < 0) {
        if (rc < 0) /* the first failure */
            *err = why;
        return -1;
    }
    if (replica_agree(run->group, rc, &run->culprit, &why) < 0) {
        *err = why;
        return -1;
    }
    run->culprit = 0; /* rank 0 prints what all ranks have found */
    if (config_agreement_check(run->group, c, &run->data, run->model, err) < 0)
        return -1;
    run->culprit = -1;
    if (open_engine(run, err) < 0)
        return -1;
    model_init(run->model, c->seed);
    run->saver = c->checkpoint ? saver_create(c->checkpoint) : NULL;
    rc = prepare_files(run, err);
    if (replica_agree(run->group, rc, &run->culprit, err) < 0 || load_peers(run, err) < 0)
        return -1;
    rc = run->rank == 0 ? metrics_open(&run->metrics, c->log, run->resumed, err) : 0;
    if (replica_agree(run->group, rc, &run->culprit, err) < 0)
        return -1;
    run->culprit = 0;
    if (broadcast_start(run, err) < 0 || run->engine_type->push(run->engine, err) < 0)
        return -1;
    if (run->resumed_whole && run->state.ranks == run->size && !c->bucket_given &&
        *run->state.buckets && run->engine_type->use_plan)
        run->engine_type->use_plan(run->engine, run->state.buckets);
    run->culprit = -1;
    if (run->resumed_whole && *run->state.algorithms &&
        run->engine_type->use_algorithms &&
        run->engine_type->use_algorithms(run->engine, run->state.algorithms, err) < 0)
        return -1;
    sampler_init(&run->sampler, (uint32_t)run->data.train.n, run->rank, run->size,
                 c->batch_size * c->accumulate, run->state.seed);
    if (prepare_training(run, err) < 0)
        return -1;
    run->in_order = xcalloc(run->data.test.n, sizeof *run->in_order);
    for (size_t i = 0; i < run->data.test.n; i++)
        run->in_order[i] = (uint32_t)i;
    run_tell_config(run);
    if (run->trace) { /* at about the same moment */
        if (ddp_barrier(run->group, err) < 0)
            return -1;
        trace_zero(run->trace);
    }
    return 0;
}

/* ---- on the way ---- */

/* Wait for the checkpoint in flight, and agree on its outcome. */
static int saved(struct run *run, struct ddp_err *err)
{
    int rc = saver_part(run->saver, err);
    if (replica_agree(run->group, rc, &run->culprit, err) < 0) {
        saver_cancel(run->saver);
        return -1;
    }
    rc = saver_end(run->saver, err);
    return replica_agree(run->group, rc, &run->culprit, err);
}

int run_save(struct run *run, struct ddp_err *err)
{
    const struct train_config *c = run->c;
    if (!c->checkpoint)
        return 0;
    if (saved(run, err) < 0 || run->engine_type->pull(run->engine, err) < 0)
        return -1;
    struct checkpoint_info info = {.state = run->state,
                                   .data = &run->data,
                                   .rank = run->rank,
                                   .ranks = run->size,
                                   .batch_size = c->batch_size,
                                   .shard_bytes = c->shard_checkpoint_bytes};
    info.state.ranks = run->size;
    if (run->engine_type->plan_text)
        run->engine_type->plan_text(run->engine, info.state.buckets,
                                    sizeof info.state.buckets);
    if (run->engine_type->algorithms_text)
        run->engine_type->algorithms_text(run->engine, info.state.algorithms,
                                          sizeof info.state.algorithms);
    saver_clear(run->saver, &info, run->model, &run->optim);
    /* No rank's part of another file is in the way any more. */
    if (ddp_barrier(run->group, err) < 0)
        return -1;
    return saver_start(run->saver, &info, run->model, &run->optim, err);
}

int run_keep(struct run *run, struct ddp_err *err)
{
    if (!run->peers)
        return 0;
    const struct peers_run what = peers_run_of(run);
    const struct peers_at at = peers_at_of(run);
    if (peers_save(run->peers, &what, &at, err) < 0 ||
        (run->c->peer_steps == 1 && peers_finish(run->peers, err) < 0))
        return -1;
    run->kept_whole = run->kept; /* peers_save() has waited for it */
    run->kept = run->state.step;
    return 0;
}

void run_mark(struct run *run)
{
    uint64_t step = run->saver ? saver_written(run->saver) : 0;
    step = step > run->kept_whole ? step : run->kept_whole;
    if (run->rank != 0 || step <= run->marked || now_ms() < run->marked_ms + MARK_MS)
        return;
    run->marked = step;
    run->marked_ms = now_ms();
    if (run->progress.out) {
        progress_say(&run->progress, "ddprun.checkpoint %" PRIu64, step);
    } else {
        printf("ddprun.checkpoint %" PRIu64 "\n", step);
        fflush(stdout);
    }
}

/* ---- the end ---- */

static int write_logits(struct run *run, struct ddp_err *err)
{
    const struct samples *test = &run->data.test;
    int outputs = run->data.shape.outputs, batch = run->c->batch_size;
    float *logits = xcalloc(test->n * (size_t)outputs, sizeof *logits);
    struct batch_buf buf;
    batch_buf_init(&buf, &run->data, batch);
    for (size_t i = 0; i < test->n; i += (size_t)batch) {
        size_t left = test->n - i;
        int n = left < (size_t)batch ? (int)left : batch;
        struct batch b =
            dataset_gather(&run->data, test, NULL, run->in_order + i, n, &buf);
        memcpy(logits + i * (size_t)outputs, model_forward(run->model, &b),
               (size_t)n * (size_t)outputs * sizeof *logits);
    }
    struct array array = {"logits", 2, {(int)test->n, outputs}, logits};
    struct strv metadata = {0};
    strv_pushf(&metadata, "model=%s", run->c->model->name);
    int rc = safetensors_write(run->c->logits, &metadata, &array, 1, err);
    strv_finish(&metadata);
    batch_buf_finish(&buf);
    free(logits);
    return rc;
}

static char *plot_title(const struct run *run)
{
    const struct train_config *c = run->c;
    char *copy = xstrdup(c->data), *title;
    const char *data = basename(copy); /* the last component of a path */
    const char *s = run->size == 1 ? "" : "s";
    if (run->last.epoch > 0 && isfinite(run->last.test_accuracy))
        title = xasprintf("%s on %s, %d rank%s: %.2f %% after epoch %d", c->model->name,
                          data, run->size, s, run->last.test_accuracy, run->last.epoch);
    else
        title = xasprintf("%s on %s, %d rank%s", c->model->name, data, run->size, s);
    free(copy);
    return title;
}

/* The plot's file. A default name does not replace a file of an earlier run: then
 * "ddp-train.2.svg" and so on. malloc'ed. */
static char *plot_file(const struct train_config *c)
{
    char *file = xstrdup(c->plot);
    const char *dot = strrchr(c->plot, '.');
    for (int i = 2; !c->plot_given && access(file, F_OK) == 0; i++) {
        free(file);
        file = xasprintf("%.*s.%d%s", (int)(dot - c->plot), c->plot, i, dot);
    }
    return file;
}

static int write_plot(struct run *run, char **path, struct ddp_err *err)
{
    const struct train_config *c = run->c;
    char *title = plot_title(run), *file = plot_file(c);
    int rc = plot_write(file, title, &run->history, err);
    free(title);
    if (rc == 0) {
        *path = realpath(file, NULL);
    } else if (!c->plot_given) {
        progress_say(&run->progress, "no picture: %s", err->text);
        rc = 0;
    }
    free(file);
    return rc;
}

static int write_files(struct run *run, struct ddp_err *err)
{
    const struct train_config *c = run->c;
    char *plot = NULL;
    int rc = 0;
    if (run->rank != 0)
        return 0;
    if (c->plot && (run->history.nsteps || run->history.nepochs))
        rc = write_plot(run, &plot, err);
    if (rc == 0 && c->logits)
        rc = write_logits(run, err);
    run_tell_result(run, plot);
    free(plot);
    if (c->sample)
        run_sample(run);
    if (rc == 0)
        rc = metrics_close(&run->metrics, err);
    return rc == 0 ? progress_check(&run->progress, err) : rc;
}

/* Rank 0 writes the traces of all ranks. */
static int write_trace(struct run *run, struct ddp_err *err)
{
    size_t size = (size_t)run->size, len, all = 0;
    char *mine = trace_text(run->trace, &len), *texts = NULL;
    size_t *counts = xcalloc(size, sizeof *counts);
    int64_t *lens = xcalloc(size, sizeof *lens), own = (int64_t)len + 2;
    int rc = ddp_all_gather(run->group, &own, lens, 1, DDP_I64, err);
    for (int r = 0; r < run->size; r++)
        all += counts[r] = (size_t)lens[r];
    if (run->rank == 0)
        texts = xcalloc(all + 1, 1);
    mine = xrealloc(mine, len + 2, 1); /* ",\n" in front of the next rank's */
    memcpy(mine + len, run->rank + 1 < run->size ? ",\n" : "\n\n", 2);
    if (rc == 0)
        rc = ddp_gatherv(run->group, mine, len + 2, texts, counts, DDP_U8, 0, err);
    if (rc == 0 && run->rank == 0)
        rc = trace_write(run->c->trace, texts, all, err);
    free(mine);
    free(texts);
    free(counts);
    free(lens);
    return rc;
}

int run_finish(struct run *run, struct ddp_err *err)
{
    const struct train_config *c = run->c;
    if ((c->checkpoint && saved(run, err) < 0) ||
        (run->peers && peers_finish(run->peers, err) < 0) ||
        run->engine_type->pull(run->engine, err) < 0)
        return -1;
    int rc = c->trace ? write_trace(run, err) : 0;
    if (rc == 0)
        rc = write_files(run, err);
    if (run->end == RUN_STOPPED)
        signals_ignore();
    return replica_agree(run->group, rc, &run->culprit, err);
}
