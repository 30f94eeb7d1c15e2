/* worker/run.c - see run.h */
#include "worker/run.h"

#include "common/ambient_launcher.h"
#include "common/duration.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/scoped.h"
#include "worker/data/memory.h"
#include "worker/group/group.h"
#include "worker/kernels/pool.h"
#include "worker/signals.h"

#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* How long to wait for the culprit to print its error, and then to exit. */
enum { CULPRIT_MS = 10000, GONE_MS = 50 };

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
    saver_destroy(run->saver);
    trace_destroy(run->trace);
    history_finish(&run->history);
    metrics_close(&run->metrics, NULL);
    free(run->in_order);
    free(run->prompt);
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
    /* the culprit may be the rank that has died: then each rank prints the error */
    return run->culprit < 0 || run->culprit == run->rank || run->group->broken;
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

/* A note: what ddprun takes for the sign of a timeout is "has not come". */
static void on_late(void *arg, int seconds)
{
    struct run *run = arg;
    char names[560];
    if (!group_tells_late(run->group, names, sizeof names))
        return;
    progress_erase(&run->progress);
    fprintf(stderr, "ddp-train: note: waiting for %s, %d s so far: a slow file system?\n",
            names, seconds);
}

int run_agree_late(struct run *run, int rc, int *culprit, struct ddp_err *err)
{
    return replica_agree_late(run->group, rc, on_late, run, culprit, err);
}

/* ---- opening ---- */

/* All ranks of a host look before one of them allocates. What this run does not touch, as
 * it has a GPU or only evaluates, takes none of the host's memory. */
static int check_memory(const struct run *run, struct ddp_err *err)
{
    const struct train_config *c = run->c;
    struct model_size size = run->model->size;
    bool several = c->how.accumulate > 1 || c->how.stages > 1;
    bool touched = c->epochs > 0 && !engine_may_be_cuda(c->engine);
    int ranks = config_ranks_here(), states = 0;
    bool shard = c->shard_optimizer || run->size == ranks; /* which share memory */
    for (int i = 0; i < OPTIM_STATES && touched; i++)
        states += optim_uses(c->optim, &c->optim_settings, i);
    double weights = (!touched ? 1 : several ? 3 : 2) * size.params * sizeof(float);
    double optim = states * size.params * sizeof(float) / (shard ? run->size : 1);
    double batch = touched ? (c->how.stages > 1 ? 2 : 1) * size.batch * sizeof(float) : 0;
    char who[40] = "it";
    if (ranks > 1)
        snprintf(who, sizeof who, "each of %d ranks here", ranks);
    OWNED char *cure = xasprintf(
        "%s takes %.1f for weights and gradients, %.1f for %s, %.1f for activations; try a "
        "smaller model or --batch-size%s",
        who, weights / 1e9, optim / 1e9, c->optim->name, batch / 1e9,
        ranks > 1 ? ", or fewer ranks here" : "");
    return memory_fits(c->model->name, ranks * (weights + optim + batch), cure, err);
}

/* Before they read their data the ranks join a first group: it is noticed at once when a
 * rank has not come, or dies meanwhile. */
static int join(struct run *run, struct ddp_err *err)
{
    struct ddp_group_options options = {.rank = -1,
                                        .name = "ddp-train",
                                        .arena_bytes = 1,
                                        .backend = run->c->backend,
                                        .timeout_ms = run->c->group_timeout_ms};
    run->group = ddp_group_init(&options, err);
    if (!run->group)
        return -1;
    run->rank = ddp_group_rank(run->group);
    run->size = ddp_group_size(run->group);
    return 0;
}

/* What each rank does alone. */
static int prepare(struct run *run, struct ddp_err *err)
{
    const struct train_config *c = run->c;
    pool_set(c->how.threads);
    run->kernels = kernels_get(c->kernels, c->how.precision, err);
    int rc = c->model->task == TASK_TOKENS
                 ? tokens_load(c->data, c->model->context, c->model->vocabulary,
                               &run->data, err)
                 : dataset_load(c->data, &c->normalise, c->seed, &run->data, err);
    if (rc < 0 || run_read_prompt(run, err) < 0)
        return -1;
    run->answers = run->data.task == TASK_TOKENS ? run->data.shape.W : 1;
    run->model =
        model_plan(c->model, run->data.shape, c->how.batch_size, run->kernels, err);
    return run->model ? check_memory(run, err) : -1;
}

/* The group that trains has memory for gradients, weights, and at most as much for
 * factors (worker/ddp/factors.c). It is made from the first one, not met anew: the place
 * of the meeting may be another job's by now. */
static int regroup(struct run *run, struct ddp_err *err)
{
    size_t bytes = 3 * run->model->count * sizeof(float) + (1 << 20);
    return group_replace(&run->group, "ddp", bytes, err);
}

/* With --steps they may be fewer. */
static int epochs_of(const struct run *run)
{
    const struct train_config *c = run->c;
    uint64_t each =
        (uint64_t)run->size * (uint64_t)(c->how.batch_size * c->how.accumulate);
    if (c->epochs == 0)
        return 0;
    uint64_t steps = (run->data.train.n + each - 1) / each;
    uint64_t epochs = (c->steps + steps - 1) / steps;
    return c->steps && epochs < (uint64_t)c->epochs ? (int)epochs : c->epochs;
}

static void on_slow(void *arg, int rank, double seconds)
{
    struct run *run = arg;
    run_tell(run, "checkpoint", "rank %d is still writing to '%s' after %.0f s: waiting",
             rank, run->c->checkpoint, seconds);
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
    TRY(run_check_files(c, err));
    return run->saver ? saver_prepare(run->saver, on_slow, run, err) : 0;
}

/* As the launcher numbers them; alone on its host a rank is the first there. */
static int local_rank(int rank)
{
    struct ambient_rank self;
    struct ddp_err ignored;
    if (ambient_launcher_rank(&self, ambient_launcher_env, &ignored) < 0 ||
        self.local_rank < 0)
        return rank;
    return self.local_rank;
}

static int open_engine(struct run *run, struct ddp_err *err)
{
    const struct train_config *c = run->c;
    bool by_time = !config_given(c, "bucket-mb");
    struct engine_job job = {
        .how = c->how,
        .group = run->group,
        .model = run->model,
        .optim = &run->optim,
        .kernels = run->kernels,
        .data = &run->data,
        .local_rank = local_rank(run->rank),
        .timeout_ms = c->group_timeout_ms,
        .buckets = {.first_bytes = BUCKET_FIRST_BYTES,
                    .cap_bytes = c->bucket_bytes,
                    .overlap = c->overlap,
                    .timed = by_time && !c->how.deterministic,
                    .shard = c->shard_optimizer && run->size > 1,
                    .direct = by_time && c->overlap},
    };
    if (c->trace)
        job.trace = run->trace = trace_create(run->rank);
    run->engine_type =
        engine_find(c->engine, run->group, run->engine_why, sizeof run->engine_why, err);
    if (!run->engine_type) {
        run->culprit = 0; /* rank 0 prints what all ranks know */
        return -1;
    }
    run->engine = run->engine_type->open(&job, err);
    run->replica = replica_of(run->model, &run->optim);
    return replica_agree(run->group, run->engine ? 0 : -1, &run->culprit, err);
}

static void make_optimiser(struct run *run)
{
    const struct train_config *c = run->c;
    optim_init(&run->optim, c->optim, c->optim_settings, run->kernels, run->model->count);
    const struct param *p = run->model->params, *end = p + run->model->nparams;
    for (; p < end && c->decay_matrices; p++)
        if (p->ndim == 1)
            optim_exempt(&run->optim, p->offset, p->count);
}

/* Set up what must not count as training time. */
static int prepare_training(struct run *run, struct ddp_err *err)
{
    int mine[2], all[2];
    const struct engine_type *type = run->engine_type;
    sampler_shares(&run->sampler, mine, all);
    for (int i = 0; i < 2 && type->prepare && run->state.epoch <= run->c->epochs; i++)
        TRY(type->prepare(run->engine, mine[i], all[i], err));
    run->info = type->info(run->engine);
    return 0;
}

int run_open(struct run *run, struct ddp_err *err)
{
    const struct train_config *c = run->c;
    TRY(join(run, err));
    int rc = prepare(run, err);
    TRY(run_agree_late(run, rc, &run->culprit, err));
    TRY(regroup(run, err));
    run->culprit = 0; /* rank 0 prints what all ranks have found */
    TRY(run_check_agreement(run, err));
    run->culprit = -1;
    model_allocate(run->model);
    make_optimiser(run);
    TRY(open_engine(run, err));
    model_init(run->model, c->seed);
    if (run->optim.states[OPTIM_AVERAGE]) /* until the first step */
        memcpy(run->optim.states[OPTIM_AVERAGE], run->replica.weights,
               run->optim.n * sizeof(float));
    if (c->checkpoint)
        run->saver = saver_create(run->group, c->checkpoint, c->shard_checkpoint_bytes);
    rc = prepare_files(run, err);
    TRY(replica_agree(run->group, rc, &run->culprit, err));
    TRY(run_resume(run, err));
    rc = run->rank == 0 ? metrics_open(&run->metrics, c->log, run->resumed, err) : 0;
    TRY(replica_agree(run->group, rc, &run->culprit, err));
    sampler_init(&run->sampler, (uint32_t)run->data.train.n, run->rank, run->size,
                 c->how.batch_size * c->how.accumulate, run->state.seed);
    TRY(prepare_training(run, err));
    run->in_order = xcalloc(run->data.test.n, sizeof *run->in_order);
    for (size_t i = 0; i < run->data.test.n; i++)
        run->in_order[i] = (uint32_t)i;
    run_tell_config(run);
    if (run->trace) { /* at about the same moment */
        TRY(ddp_barrier(run->group, err));
        trace_zero(run->trace);
    }
    return 0;
}

int run_finish(struct run *run, struct ddp_err *err)
{
    /* all ranks know; the result is not lost with a checkpoint */
    int saved = run->saver ? saver_finish(run->saver, &run->culprit, err) : 0;
    int *culprit = saved < 0 ? NULL : &run->culprit;
    err = saved < 0 ? NULL : err;
    if ((run->peers && peers_finish(run->peers, err) < 0) ||
        run->engine_type->pull(run->engine, err) < 0)
        return -1;
    if (run->optim.states[OPTIM_AVERAGE])
        optim_swap_average(&run->optim, run->model->weights);
    int rc = run_write_files(run, err);
    if (run->end == RUN_STOPPED)
        signals_ignore();
    TRY(run_agree_late(run, rc, culprit, err));
    TRY(saved);
    if (run->rank == 0 && run->c->sample && run->end != RUN_STOPPED)
        run_sample(run); /* the others do not wait for it: it may take long */
    return progress_check(&run->progress, err);
}
