/* worker/summary.c - a run's configuration table at the start, its summary at the end
 *
 * Rank 0 only.
 */
#include "worker/run.h"

#include "common/duration.h"
#include "common/mem.h"
#include "common/number.h"
#include "common/scoped.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <sys/resource.h>

/* "2 x - 1", not "2 x + -1" */
static char sign(double x)
{
    return signbit(x) ? '-' : '+';
}

/* A single label that is far too large makes a large model. */
static void tell_classes(struct run *run)
{
    const struct samples *train = &run->data.train;
    size_t classes = (size_t)run->data.shape.outputs, used = 0, last = 0;
    OWNED bool *seen = xcalloc(classes, sizeof *seen);
    for (size_t i = 0; i < train->n; i++) {
        used += !seen[train->labels[i]];
        seen[train->labels[i]] = true;
        last = train->labels[i] > train->labels[last] ? i : last;
    }
    if (classes > 10 && used < classes / 2)
        run_tell(run, "",
                 "only %zu classes have training images; the largest label is %" PRIu32
                 ", of image %zu",
                 used, train->labels[last], last);
}

static void tell_data(struct run *run)
{
    static const char *const units[] = {
        [1] = "bytes", [2] = "tokens of 16 bits", [4] = "tokens of 32 bits"};
    const struct dataset *d = &run->data;
    const struct number_text train = number_grouped(d->train.n),
                             test = number_grouped(d->test.n);
    bool augmented = run->c->how.augment.pad > 0 || run->c->how.augment.flip;
    if (d->task == TASK_CLASSIFY) {
        run_tell(run, "data", "%s: %s training and %s test images, %dx%d, %d classes%s%s",
                 d->name, train.text, test.text, d->shape.W, d->shape.H, d->shape.outputs,
                 augmented ? ", " : "", augmented ? config_text(run->c, "augment") : "");
        tell_classes(run);
    } else if (d->task == TASK_TOKENS)
        run_tell(run, "data", "%s: %s training and %s test samples of %d %s%s", d->name,
                 train.text, test.text, run->answers, units[d->token_bytes],
                 d->token_bytes == 1 && d->shape.outputs > 256
                     ? "; examples/python/tokens.py makes a text's tokens"
                     : "");
    else
        run_tell(
            run, "data", "%s: %s training and %s test points of y = %g x %c %g, noise %g",
            d->name, train.text, test.text, dataset_line.slope, sign(dataset_line.offset),
            fabs(dataset_line.offset), dataset_line.noise);
}

/* Whatever comes first. */
static void tell_limits(struct run *run)
{
    static const char either[] = ", or ";
    const struct train_config *c = run->c;
    OWNED char *text = NULL;
    if (isfinite(c->target))
        xappendf(&text, "%s%g %% test accuracy", either, c->target);
    if (c->steps)
        xappendf(&text, "%sstep %" PRIu64, either, c->steps);
    if (c->epochs < EPOCHS_UNLIMITED)
        xappendf(&text, "%s%d epoch%s", either, c->epochs, c->epochs == 1 ? "" : "s");
    run_tell(run, "until", "%s", text + strlen(either));
}

static void tell_begin(struct run *run)
{
    const struct train_config *c = run->c;
    tell_limits(run);
    if (*peers_told(run->peers))
        run_tell(run, "resumed", "%s", peers_told(run->peers));
    if (run->from_memory)
        return;
    if (run->resumed_whole)
        run_tell(run, "resumed", "%s: %s after step %" PRIu64, c->resume,
                 run_has_ended(run)     ? "nothing is left to train"
                 : run_may_be_done(run) ? "tested before training goes on"
                                        : "training goes on",
                 run->state.step);
    else if (run->resumed)
        run_tell(run, "resumed", "%s: weights only", c->resume);
    else if (c->resume)
        run_tell(run, "resumed", "nothing: there is no '%s' yet", c->resume);
    if (c->init && !run->resumed)
        run_tell(run, "weights", "of %s", c->init);
}

double run_peak_percent(const struct run *run, double images_per_s)
{
    double peak = run->info.peak * run->size;
    return peak > 0 ? 100 * images_per_s * model_flop(run->model) / peak : (double)NAN;
}

/* null: unknown */
static json_t *positive(double x)
{
    return metrics_number(x > 0 ? x : (double)NAN);
}

static void log_config(struct run *run)
{
    const struct train_config *c = run->c;
    const struct metrics_field fields[] = {
        {"model", json_string(c->model->name)},
        {"parameters", json_integer((json_int_t)run->model->count)},
        {"ranks", json_integer(run->size)},
        {"batch_size", json_integer(c->how.batch_size)},
        {"optimizer", json_string(c->optim->name)},
        {"kernels", json_string(run->kernels->name)},
        {"precision", json_string(precision_names[c->how.precision])},
        {"threads", json_integer(c->how.threads)},
        {"train_samples", json_integer((json_int_t)run->data.train.n)},
        {"test_samples", json_integer((json_int_t)run->data.test.n)},
        {"augment", json_string(config_text(c, "augment"))},
        {"seed", json_integer((json_int_t)run->state.seed)},
        {"step", json_integer((json_int_t)run->state.step)},
        {"flop_per_sample", positive(model_flop(run->model))},
        {"peak_flops", positive(run->info.peak)}};
    metrics_line(&run->metrics, "run", fields, ARRAY_LEN(fields));
}

static void tell_tuned(struct run *run)
{
    const char *tuned = run->info.tuned;
    if (run->c->how.tune > 0 && !tuned)
        run_tell(run, "tuned", "nothing: the engine '%s' has no choice",
                 run->engine_type->name);
    else if (run->c->how.tune > 0)
        run_tell(run, "tuned", "%s", *tuned ? tuned : "nothing: no step is left to take");
}

void run_tell_config(struct run *run)
{
    const struct train_config *c = run->c;
    size_t buckets = run->info.buckets;
    run_tell(run, "model", "%s, %s parameters", c->model->name,
             number_grouped(run->model->count).text);
    if (c->data)
        tell_data(run);
    if (run->size == 1)
        run_tell(run, "ranks", "1");
    else if (buckets == 0)
        run_tell(run, "ranks", "%d over %s, each updates its part", run->size,
                 ddp_group_backend(run->group));
    else
        run_tell(run, "ranks", "%d over %s, %zu gradient bucket%s", run->size,
                 ddp_group_backend(run->group), buckets, buckets == 1 ? "" : "s");
    char times[32] = "";
    if (c->how.accumulate > 1)
        snprintf(times, sizeof times, "%d times ", c->how.accumulate);
    run_tell(run, "batch", "%s%d per rank, %d in all", times, c->how.batch_size,
             c->how.accumulate * c->how.batch_size * run->size);
    run_tell(run, "optimizer", "%s, learning rate %g, %s, seed %" PRIu64, c->optim->name,
             c->lr, config_text(c, "schedule"), run->state.seed);
    if (run->optim.states[OPTIM_AVERAGE])
        run_tell(run, "average", "of the weights, which keeps %s in a step; for tests",
                 config_text(c, "ema"));
    run_tell(run, "engine", "%s: %s (%s)", run->engine_type->name, run->info.text,
             run->engine_why);
    tell_tuned(run);
    if (c->how.precision != PRECISION_FP32 && run->engine_type == &engine_cpu)
        run_tell(run, "precision", "%s (%s); weights, sums and optimizer in fp32",
                 precision_names[c->how.precision], run->kernels->arithmetic);
    tell_begin(run);
    run_mark_begin(run);
    progress_gap(&run->progress);
    log_config(run);
}

static void tell_learned(struct run *run)
{
    const struct report *r = &run->last;
    if (r->epoch == 0 && run->end == RUN_STOPPED)
        run_tell(run, "accuracy", "not measured: no epoch was finished");
    else if (run->data.task == TASK_CLASSIFY)
        run_tell(run, "accuracy", "%.2f %% of %s test images after %d epoch%s",
                 r->test_accuracy, number_grouped(run->data.test.n).text, r->epoch,
                 r->epoch == 1 ? "" : "s");
    else if (run->data.task == TASK_TOKENS)
        run_tell(run, "learned", "test loss %.4f, %.2f %% of the test tokens predicted",
                 r->test_loss, r->test_accuracy);
    else if (run->model->count > 2)
        run_tell(run, "learned", "test loss %.6f", r->test_loss);
    else {
        double slope = (double)run->model->weights[0];
        double offset = (double)run->model->weights[1];
        run_tell(run, "learned",
                 "y = %.4f x %c %.4f, drawn from y = %g x %c %g; test loss %.6f", slope,
                 sign(offset), fabs(offset), dataset_line.slope,
                 sign(dataset_line.offset), fabs(dataset_line.offset), r->test_loss);
    }
}

static const char *why(const struct run *run)
{
    return run->end == RUN_TARGET_REACHED                      ? "target reached"
           : run->end == RUN_STOPPED                           ? "stopped by a signal"
           : isfinite(run->c->target)                          ? "target not reached"
           : run->c->steps && run->state.step >= run->c->steps ? "all steps done"
                                                               : "all epochs done";
}

static double images_per_s(const struct run *run)
{
    return run->train_ns > 0 ? (double)run->images * 1e9 / (double)run->train_ns : 0;
}

static void log_result(struct run *run)
{
    double percent = run_peak_percent(run, images_per_s(run));
    const struct metrics_field fields[] = {
        {"why", json_string(why(run))},
        {"step", json_integer((json_int_t)run->state.step)},
        {"images", json_integer((json_int_t)run->images)},
        {"train_seconds", json_real((double)run->train_ns / 1e9)},
        {"seconds", json_real((double)(now_ns() - run->began_ns) / 1e9)},
        {"peak_percent", positive(percent)},
        {"device_bytes", positive((double)run->info.bytes)}};
    metrics_line(&run->metrics, "end", fields, ARRAY_LEN(fields));
}

static void tell_memory(struct run *run)
{
    struct rusage usage;
    char on_device[48] = "";
    if (run->info.bytes > 0)
        snprintf(on_device, sizeof on_device, ", %.1f MiB of its GPU's",
                 (double)run->info.bytes / (1 << 20));
    getrusage(RUSAGE_SELF, &usage);
    run_tell(run, "memory",
             "%.1f MiB at most on rank 0%s; weights and gradients %.1f MiB each",
             (double)usage.ru_maxrss / 1024, on_device,
             (double)(run->model->count * sizeof(float)) / (1 << 20));
}

/* Percent of the devices' peak, where it is known. */
static void tell_share(struct run *run)
{
    double percent = run_peak_percent(run, images_per_s(run));
    double tflops = images_per_s(run) * model_flop(run->model) / 1e12;
    const char *s = run->size > 1 ? "s" : "";
    if (isfinite(percent))
        run_tell(run, "arithmetic",
                 "%.3g TFLOP/s, %.1f %% of the %.3g that the GPU%s could", tflops,
                 percent, run->info.peak * run->size / 1e12, s);
    else if (run->info.bytes > 0)
        run_tell(run, "arithmetic", "%.3g TFLOP/s; what the GPU%s could is unknown",
                 tflops, s);
}

static void tell_kept(struct run *run)
{
    if (!run->peers)
        return;
    struct peers_cost cost = peers_cost(run->peers);
    char where[40] = "";
    if (cost.next >= 0)
        snprintf(where, sizeof where, ", to rank %d", cost.next);
    run_tell(run, "kept",
             "%" PRIu64 " times %.2f MiB%s, in %.1f MiB of memory; training "
             "stood still for %.3f s",
             cost.sets, (double)cost.part / (1 << 20), where,
             (double)cost.memory / (1 << 20), cost.stalled_s);
}

void run_tell_result(struct run *run, const char *plot)
{
    log_result(run);
    struct progress *p = &run->progress;
    double training = (double)run->train_ns / 1e9;
    double all = (double)(now_ns() - run->began_ns) / 1e9;
    progress_gap(p);
    if (run->c->data)
        tell_learned(run);
    if (run->images > 0) {
        uint64_t speed = (uint64_t)(images_per_s(run) * p->each);
        run_tell(run, "speed", "%s %s/s; %.2f s of training, %.2f s in all",
                 number_grouped(speed).text, p->unit, training, all);
        tell_share(run);
        tell_memory(run);
    }
    if (run->checksum)
        run_tell(run, "replicas", "%d alike, checksum %016" PRIx64, run->size,
                 run->checksum);
    if (plot)
        run_tell(run, "picture", "%s", plot);
    if (run->trace)
        run_tell(run, "trace", "%s: open it at ui.perfetto.dev", run->c->trace);
    if (saver_path(run->saver))
        run_tell(run, "checkpoint",
                 "%s, step %" PRIu64 "; training stood still for %.3f s",
                 saver_path(run->saver), saver_written(run->saver),
                 saver_stalled_s(run->saver));
    tell_kept(run);
    if (run->skipped)
        run_tell(run, "skipped", "%" PRIu64 " step%s", run->skipped,
                 run->skipped == 1 ? "" : "s");
    if (run->end != RUN_ALL_EPOCHS || isfinite(run->c->target))
        run_tell(run, "ended", "%s after step %" PRIu64, why(run), run->state.step);
}
