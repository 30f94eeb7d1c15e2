/* worker/train.c - the training loop: epoch, step, evaluate
 *
 * All ranks run it in lockstep. Whatever decides its course (a target reached, a
 * signal, a loss that is not finite) is a sum over the ranks, so all ranks take the
 * same branch.
 */
#include "worker/run.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/scoped.h"
#include "worker/ddp/replica.h"
#include "worker/signals.h"

#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>

/* Sums of an epoch over all ranks. */
struct tally {
    double loss; /* the sum over its samples */
    double correct;
    uint64_t samples;
    int64_t began_ns;
};

static double seconds_since(int64_t ns)
{
    return (double)(now_ns() - ns) / 1e9;
}

/* Epochs completed, with the fraction of the current one. */
static double epochs_at(const struct run *run, uint64_t position)
{
    return (double)(run->state.epoch - 1) + (double)position / (double)run->data.train.n;
}

static double learning_rate(const struct run *run)
{
    const struct train_config *c = run->c;
    double at = epochs_at(run, run->state.position);
    double steps = c->steps ? (double)run->state.step / (double)c->steps : 0;
    double epochs = c->epochs ? at / c->epochs : 0;
    double part = !c->steps && !c->epochs ? 1 : fmax(steps, epochs);
    return c->lr * schedule_factor(&c->schedule, at, part, run->state.step);
}

static bool steps_done(const struct run *run)
{
    return run->c->steps && run->state.step >= run->c->steps;
}

bool run_has_ended(const struct run *run)
{
    return run->state.epoch > run->c->epochs || steps_done(run);
}

/* NaN is printed without a sign. */
static double shown(double loss)
{
    return isnan(loss) ? (double)NAN : loss;
}

/* With --sync-batch-norm a bad number spreads to all ranks. The rank where it is
 * nearest to the data has caused it. */
static int began_here(const struct run *run, const struct engine_result *result,
                      bool *here, struct ddp_err *err)
{
    bool bad = !isfinite(result->loss);
    int32_t mine = bad && *result->where ? result->depth : INT32_MAX - bad, first = mine;
    int rc = ddp_all_reduce(run->group, &first, 1, DDP_I32, DDP_MIN, err);
    *here = bad && mine == first;
    return rc;
}

static int refuse_bad_loss(struct run *run, const struct engine_result *result,
                           struct ddp_err *err)
{
    int rc = 0;
    bool here, data = *result->where && result->depth == 0;
    TRY(began_here(run, result, &here, err));
    if (here)
        rc = err_set(err,
                     "rank %d: the loss is %g at step %" PRIu64 ", epoch %" PRId64
                     "; first bad: %s: try %s, or --on-nan skip",
                     run->rank, shown(result->loss), result->of.step + 1,
                     run->state.epoch, *result->where ? result->where : "the loss itself",
                     data ? "data without NaN and infinity" : "a lower --lr");
    else if (result->sums.bad == 1 && isfinite(result->sums.loss) && run->rank == 0)
        rc = err_set(err,
                     "the gradients of step %" PRIu64 ", epoch %" PRId64
                     " are not finite: try a lower --lr than %g, or --on-nan skip",
                     result->of.step + 1, run->state.epoch, run->c->lr);
    return replica_agree(run->group, rc, &run->culprit, err);
}

/* ---- a step ---- */

/* Submit a step to the engine; returns 1 with the next result, 0 when there is none
 * yet. */
static int submit_step(struct run *run, int mine, int all, struct engine_result *result,
                       struct ddp_err *err)
{
    struct engine_step s = {
        .which = run->sampler.picked,
        .mine = mine,
        .all = all,
        .lr = (float)learning_rate(run),
        .step = run->state.step,
        .position = run->sampler.position,
        .dropout_seed = dropout_seed(run->state.seed, run->state.step),
        .dropout_draw = dropout_draw(run->rank),
        .augment_key = augment_key(run->state.seed, (uint64_t)run->state.epoch),
        .signal = signals_stop_requested(),
    };
    run->state.step++;
    run->state.position = s.position;
    return run->engine_type->step(run->engine, &s, result, err);
}

static void tell_step(struct run *run, const struct tally *t,
                      const struct engine_result *result)
{
    struct report r = {
        .step = result->of.step + 1,
        .epoch = (int)run->state.epoch,
        .loss = (double)result->sums.loss,
        .lr = (double)result->of.lr,
        .images_per_s = (double)t->samples / seconds_since(t->began_ns),
        .seconds = seconds_since(run->began_ns),
    };
    metrics_report(&run->metrics, METRICS_STEP, &r);
    const char *why = metrics_failure(&run->metrics);
    if (why)
        progress_say(&run->progress, "from step %" PRIu64 " on '%s' has nothing: %s",
                     r.step, run->c->log, why);
    progress_step(&run->progress, &r, result->of.position, run->data.train.n);
    history_step(&run->history, epochs_at(run, result->of.position), r.loss);
}

/* If a rank has a signal: all know which ones any of them has. */
static void heed(struct run *run, const struct step_sums *all)
{
    if (all->stop == 0)
        return;
    run->end = RUN_STOPPED;
    run->stopped_by = all->interrupted > 0 ? SIGINT : all->warned > 0 ? SIGUSR1 : SIGTERM;
}

static int take_result(struct run *run, struct tally *t,
                       const struct engine_result *result, struct ddp_err *err)
{
    if (result->sums.bad > 0)
        return refuse_bad_loss(run, result, err);
    if (result->sums.skipped > 0) {
        char scaled[48] = "";
        run->skipped++;
        if (result->loss_scale > 0)
            snprintf(scaled, sizeof scaled, "; the loss is now scaled by %.9g",
                     (double)result->loss_scale);
        progress_say(&run->progress, "step %" PRIu64 " skipped: %s not finite%s",
                     result->of.step + 1,
                     isfinite(result->sums.loss) ? "its gradients are" : "its loss is",
                     scaled);
    } else {
        t->loss += (double)result->sums.loss * result->of.all;
        t->correct += (double)result->sums.correct;
        t->samples += (uint64_t)result->of.all;
    }
    if (run->rank == 0)
        tell_step(run, t, result);
    heed(run, &result->sums);
    return 0;
}

static int drain_steps(struct run *run, struct tally *t, struct ddp_err *err)
{
    struct engine_result result;
    int rc;
    while ((rc = run->engine_type->drain(run->engine, &result, err)) > 0)
        TRY(take_result(run, t, &result, err));
    return rc;
}

/* ---- tests ---- */

/* Have these test samples a number that is not finite? */
static bool is_bad_data(const struct run *run, const uint32_t *which, int n)
{
    const struct io_shape *s = &run->data.shape;
    SCOPED(batch_buf_finish) struct batch_buf buf;
    batch_buf_init(&buf, &run->data, n);
    struct batch b = dataset_gather(&run->data, &run->data.test, NULL, which, n, &buf);
    size_t floats = (size_t)n * (size_t)(s->C * s->H * s->W);
    return b.x && !run->kernels->finite(b.x, floats, false);
}

/* Each rank tests its share of the test set; the counts are summed exactly. A signal at
 * any rank ends the test: it may take longer than there is time to save. */
static int run_tests(struct run *run, struct report *r, bool *bad_data,
                     struct ddp_err *err)
{
    const struct samples *test = &run->data.test;
    uint32_t first, n = sampler_share((uint32_t)test->n, run->rank, run->size, &first);
    uint32_t most = (uint32_t)run->c->how.batch_size;
    double sums[3] = {0}; /* loss, right answers, batches of bad data */
    struct step_sums told;
    /* as often as the rank with the largest share has to */
    for (uint32_t i = 0; i * (uint64_t)run->size < test->n; i += most) {
        int count = i >= n ? 0 : n - i < most ? (int)(n - i) : (int)most, correct = 0;
        float loss = 0;
        const uint32_t *which = run->in_order + first + i;
        if (count > 0)
            TRY(run->engine_type->evaluate(run->engine, test, which, count, &loss,
                                           &correct, err));
        sums[0] += (double)loss * count;
        sums[1] += correct;
        sums[2] += !isfinite(loss) && is_bad_data(run, which, count);
        told = engine_told(signals_stop_requested());
        TRY(ddp_all_reduce(run->group, &told, sizeof told / sizeof(float), DDP_F32,
                           DDP_SUM, err));
        heed(run, &told);
        if (run->end == RUN_STOPPED)
            return 0;
    }
    TRY(ddp_all_reduce(run->group, sums, ARRAY_LEN(sums), DDP_F64, DDP_SUM, err));
    r->test_loss = sums[0] / (double)test->n;
    r->test_accuracy = run->data.task == TASK_REGRESS
                           ? (double)NAN
                           : 100 * sums[1] / ((double)test->n * run->answers);
    *bad_data = sums[2] > 0;
    return 0;
}

/* What was trained is not lost with bad test data. */
static int refuse_bad_test(struct run *run, double loss, bool bad_data,
                           struct ddp_err *err)
{
    bool saved = false;
    if (bad_data && run->saver && run->state.step > 0) {
        TRY(run->engine_type->pull(run->engine, err));
        saved = run->kernels->finite(run->model->weights, run->model->count, false);
    }
    if (saved &&
        (run_save(run, err) < 0 || saver_finish(run->saver, &run->culprit, err) < 0))
        return -1;
    run->culprit = 0;
    return err_set(err, "the test loss is %g after step %" PRIu64 ": try %s%s",
                   shown(loss), run->state.step,
                   bad_data ? "test data without NaN and infinity" : "a lower --lr",
                   saved ? ", and --resume" : "");
}

/* With --ema the averaged weights take the weights' place meanwhile. */
static int evaluate(struct run *run, struct report *r, struct ddp_err *err)
{
    const struct engine_type *type = run->engine_type;
    bool average = run->optim.states[OPTIM_AVERAGE], bad_data = false;
    if (average) {
        TRY(type->pull(run->engine, err));
        optim_swap_average(&run->optim, run->model->weights);
        TRY(type->push(run->engine, err));
    }
    TRY(run_tests(run, r, &bad_data, err));
    if (average) {
        optim_swap_average(&run->optim, run->model->weights);
        TRY(type->push(run->engine, err));
    }
    return isfinite(r->test_loss) ? 0 : refuse_bad_test(run, r->test_loss, bad_data, err);
}

/* ---- an epoch ---- */

/* After every so many steps, but not after an epoch's last, or the run's: end_epoch()
 * does it then. */
static bool is_due(const struct run *run, int every)
{
    return every > 0 && run->state.step % (uint64_t)every == 0 &&
           run->state.position < run->data.train.n && !steps_done(run);
}

/* The time counts for no step. */
static int test_between_steps(struct run *run, struct tally *t, struct ddp_err *err)
{
    int64_t began = now_ns();
    struct report r = {.step = run->state.step, .epoch = (int)run->state.epoch};
    TRY(evaluate(run, &r, err));
    t->began_ns += now_ns() - began;
    r.seconds = seconds_since(run->began_ns);
    if (run->rank == 0 && run->end == RUN_GOING) {
        metrics_report(&run->metrics, METRICS_TEST, &r);
        progress_test(&run->progress, &r);
    }
    return 0;
}

static int do_what_is_due(struct run *run, struct tally *t, struct ddp_err *err)
{
    /* A set may be under way when a host is lost, so one is begun twice in
     * --peer-checkpoint steps. */
    int steps = run->c->peer_steps;
    bool save = is_due(run, run->c->checkpoint_every),
         keep = is_due(run, steps > 1 ? steps / 2 : steps),
         test = is_due(run, run->c->test_every);
    if ((save || keep || test) && drain_steps(run, t, err) < 0)
        return -1;
    if (test && run->end == RUN_GOING)
        TRY(test_between_steps(run, t, err));
    if (run->end != RUN_GOING)
        return 0; /* a stopped run is saved in any case */
    if ((save && run_save(run, err) < 0) || (keep && run_keep(run, err) < 0))
        return -1;
    run_mark(run);
    return run->peers ? peers_progress(run->peers, err) : 0;
}

/* From state.position to the end of the epoch, or until a rank is told to stop. */
static int train_epoch(struct run *run, struct tally *t, struct ddp_err *err)
{
    int mine, all;
    sampler_start(&run->sampler, (int)run->state.epoch, run->state.position);
    *t = (struct tally){.began_ns = now_ns()};
    while (run->end == RUN_GOING && !steps_done(run) &&
           (all = sampler_next(&run->sampler, &mine)) > 0) {
        struct engine_result result;
        int rc = submit_step(run, mine, all, &result, err);
        if (rc < 0 || (rc > 0 && take_result(run, t, &result, err) < 0))
            return -1;
        if (run->end == RUN_GOING && do_what_is_due(run, t, err) < 0)
            return -1;
    }
    TRY(drain_steps(run, t, err));
    run->train_ns += now_ns() - t->began_ns;
    run->images += t->samples;
    return 0;
}

static int end_epoch(struct run *run, const struct tally *t, struct ddp_err *err)
{
    struct report r = {.step = run->state.step, .epoch = (int)run->state.epoch};
    double n = (double)t->samples;
    bool counts = run->data.task != TASK_REGRESS;
    double seconds = seconds_since(t->began_ns);
    r.loss = n > 0 ? t->loss / n : (double)NAN;
    r.train_accuracy =
        n > 0 && counts ? 100 * t->correct / (n * run->answers) : (double)NAN;
    r.images_per_s = n > 0 ? n / seconds : (double)NAN;
    r.peak_percent = run_peak_percent(run, r.images_per_s);
    r.lr = learning_rate(run);
    TRY(evaluate(run, &r, err));
    if (run->end == RUN_STOPPED)
        return run_save(run, err); /* the next run begins with the test */
    r.seconds = seconds_since(run->began_ns);
    run->last = r;
    if (run->rank == 0) {
        metrics_report(&run->metrics, METRICS_EPOCH, &r);
        progress_epoch(&run->progress, &r);
        history_epoch(&run->history, &r);
    }
    if (run->c->check_replicas) {
        run->culprit = 0; /* rank 0 prints what all ranks have seen */
        if (run->engine_type->pull(run->engine, err) < 0 ||
            replica_check(run->group, &run->replica, &run->checksum, err) < 0)
            return -1;
        run->culprit = -1;
    }
    if (r.test_accuracy >= run->c->target) /* never so without a target: it is NaN */
        run->end = RUN_TARGET_REACHED;
    if (run->state.position >= run->data.train.n) { /* --steps may end within an epoch */
        run->state.epoch++;
        run->state.position = 0;
    }
    return run_save(run, err) < 0 ? -1 : run_keep(run, err);
}

/* ---- all of it ---- */

/* The model as it is after the last epoch that is complete: has it reached the target? */
static int test_as_is(struct run *run, struct ddp_err *err)
{
    struct report r = {.epoch = (int)run->state.epoch - 1};
    TRY(evaluate(run, &r, err));
    if (run->end == RUN_STOPPED)
        return 0;
    run->last = r;
    if (r.test_accuracy >= run->c->target)
        run->end = RUN_TARGET_REACHED;
    return 0;
}

bool run_may_be_done(const struct run *run)
{
    return run->resumed_whole && isfinite(run->c->target) && run->state.position == 0 &&
           run->state.epoch > 1 && !run_has_ended(run);
}

int run_train(struct run *run, struct ddp_err *err)
{
    if (run_may_be_done(run))
        TRY(test_as_is(run, err));
    bool done = run->end != RUN_GOING;
    while (run->end == RUN_GOING && !run_has_ended(run)) {
        struct tally t;
        TRY(train_epoch(run, &t, err));
        if (run->end == RUN_STOPPED)
            return run_save(run, err);
        TRY(end_epoch(run, &t, err));
    }
    if (run->end == RUN_GOING)
        run->end = RUN_ALL_EPOCHS;
    if (run->last.epoch > 0 && !done)
        return 0;
    if (run->from_memory && run_save(run, err) < 0) /* the disk has an earlier step */
        return -1;
    /* else no epoch was left, or none was asked for */
    return done || !run->c->data ? 0 : test_as_is(run, err);
}
