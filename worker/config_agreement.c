/* worker/config_agreement.c - options that must be the same on all ranks (run.h)
 *
 * Every rank writes down what it has; all compare a checksum. Only where that differs are
 * the words looked at: rank 0's, and those of the lowest rank that has others.
 */
#include "worker/run.h"

#include "common/err.h"
#include "common/mem.h"
#include "worker/kernels/rng.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ITEMS = 40, WIDTH = 112 };

struct words {
    int n;
    const char *names[ITEMS];
    char values[ITEMS][WIDTH]; /* zeros behind the text */
};

__attribute__((format(printf, 3, 4))) static void say(struct words *w, const char *name,
                                                      const char *format, ...)
{
    va_list args;
    va_start(args, format);
    w->names[w->n] = name;
    vsnprintf(w->values[w->n++], WIDTH, format, args);
    va_end(args);
}

static void say_flag(struct words *w, const char *name, bool on)
{
    say(w, name, "%s", on ? "on" : "off");
}

static void say_normalise(struct words *w, const struct normalise *n)
{
    char text[WIDTH] = "data";
    size_t used = 0;
    for (int part = 0; part < 2; part++)
        for (int i = 0; i < n->channels; i++)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%.9g",
                                     i > 0      ? ","
                                     : part > 0 ? "/"
                                                : "",
                                     (double)(part > 0 ? n->std[i] : n->mean[i]));
    say(w, "for --normalize", "%s", text);
}

/* What decides what is learnt. */
static void say_learning(struct words *w, const struct train_config *c)
{
    const char *folder = strrchr(c->model->name, '/'); /* may differ: the text may not */
    say(w, "for --model", "%s", folder ? folder + 1 : c->model->name);
    say(w, "as checksum of --model", "%016" PRIx64, c->model->checksum);
    say(w, "for --batch-size", "%d", c->batch_size);
    say(w, "for --epochs", "%d", c->epochs);
    say(w, "for --steps", "%" PRIu64, c->steps);
    say(w, "for --seed", "%" PRIu64, c->seed);
    say(w, "for --optimizer", "%s", c->optim->name);
    say(w, "for --lr", "%.9g", c->lr);
    say(w, "for --momentum", "%.9g", (double)c->optim_settings.momentum);
    say(w, "for --weight-decay", "%.9g", (double)c->optim_settings.decay);
    say(w, "for --schedule", "%s", c->schedule_text);
    say(w, "for --warmup", "%" PRIu64, c->schedule.warmup);
    if (isfinite(c->target))
        say(w, "for --target-accuracy", "%.9g", c->target);
    else
        say(w, "for --target-accuracy", "nothing");
    say(w, "for --augment", "%s", c->augment_text);
    say_normalise(w, &c->normalise);
    say(w, "for --precision", "%s", precision_names[c->precision]);
    say(w, "for --accumulate", "%d", c->accumulate);
    say(w, "for --clip-norm", "%.9g", c->clip_norm);
    say(w, "for --on-nan", "%s", c->skip_bad ? "skip" : "stop");
    say_flag(w, "for --no-dropout", !c->dropout);
    say_flag(w, "for --sync-batch-norm", c->sync_norms);
}

/* What decides which calls follow each other on the group. */
static void say_working(struct words *w, const struct train_config *c)
{
    say(w, "for --engine", "%s", c->engine ? c->engine : "auto");
    say(w, "for --stages", "%d", c->stages);
    say(w, "for --micro-batches", "%d", c->micro_batches);
    say(w, "for --tune", "%.9g", c->tune);
    say_flag(w, "for --shard-optimizer", c->shard_optimizer);
    if (c->bucket_given)
        say(w, "for --bucket-mb", "%.9g", (double)c->bucket_bytes / (1 << 20));
    else
        say(w, "for --bucket-mb", "nothing");
    say_flag(w, "for --no-overlap", !c->overlap);
    say_flag(w, "for --check-replicas", c->check_replicas);
    say_flag(w, "for --checkpoint", c->checkpoint != NULL);
    say(w, "for --checkpoint-every", "%d", c->checkpoint_every);
    say(w, "bytes for --checkpoint-shard-mb", "%zu", c->shard_checkpoint_bytes);
    say(w, "for --peer-checkpoint", "%d", c->peer_steps);
    say_flag(w, "for --trace", c->trace != NULL);
}

static uint64_t checksum(const struct words *w)
{
    const unsigned char *bytes = (const unsigned char *)w->values;
    uint64_t sum = 0;
    for (size_t i = 0; i < sizeof w->values; i++)
        sum = rng_mix(sum ^ bytes[i]);
    return sum;
}

/* The lowest rank that has another sum than rank 0; 0: there is none. */
static int find_other(struct ddp_group *group, uint64_t mine, int *other,
                      struct ddp_err *err)
{
    int size = ddp_group_size(group);
    uint64_t *sums = xcalloc((size_t)size, sizeof *sums);
    int rc = ddp_all_gather(group, &mine, sums, 1, DDP_I64, err);
    *other = 0;
    for (int r = size - 1; r > 0 && rc == 0; r--)
        if (sums[r] != sums[0])
            *other = r;
    free(sums);
    return rc;
}

int run_check_agreement(const struct run *run, struct ddp_err *err)
{
    struct ddp_group *group = run->group;
    int other;
    struct words mine = {0};
    say(&mine, "training samples", "%zu", run->data.train.n);
    say(&mine, "test samples", "%zu", run->data.test.n);
    say_learning(&mine, run->c);
    say_working(&mine, run->c);
    say(&mine, "parameters", "%zu", model_param_count(run->model));
    if (find_other(group, checksum(&mine), &other, err) < 0)
        return -1;
    if (other == 0)
        return 0;
    struct words first = mine, theirs = mine;
    if (ddp_broadcast(group, first.values, sizeof first.values, DDP_U8, 0, err) < 0 ||
        ddp_broadcast(group, theirs.values, sizeof theirs.values, DDP_U8, other, err) < 0)
        return -1;
    int i = 0;
    while (i < mine.n - 1 && strcmp(first.values[i], theirs.values[i]) == 0)
        i++;
    return err_set(err, "rank %d has %s %s, rank 0 has %s", other, theirs.values[i],
                   mine.names[i], first.values[i]);
}
