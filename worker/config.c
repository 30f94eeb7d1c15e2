/* worker/config.c - see config.h
 *
 * argp's table is the only list of options; doc/ddp-train.1.md is tested against --help.
 * What depends on another option (the learning rate on the optimiser, the data on the
 * model) is filled in at the end, when all of them are known.
 */
#include "worker/config.h"

#include "common/err.h"
#include "common/mem.h"
#include "worker/config_value.h"

#include <argp.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

enum key {
    KEY_MODEL = 0x100,
    KEY_DATA,
    KEY_EPOCHS,
    KEY_STEPS,
    KEY_BATCH_SIZE,
    KEY_OPTIMIZER,
    KEY_LR,
    KEY_MOMENTUM,
    KEY_WEIGHT_DECAY,
    KEY_SCHEDULE,
    KEY_WARMUP,
    KEY_NO_DROPOUT,
    KEY_SYNC_NORMS,
    KEY_AUGMENT,
    KEY_NORMALIZE,
    KEY_ACCUMULATE,
    KEY_CLIP_NORM,
    KEY_ON_NAN,
    KEY_TARGET,
    KEY_SEED,
    KEY_CHECKPOINT,
    KEY_CHECKPOINT_EVERY,
    KEY_CHECKPOINT_SHARD_MB,
    KEY_PEER_CHECKPOINT,
    KEY_RESUME,
    KEY_LOG,
    KEY_PLOT,
    KEY_LOGITS,
    KEY_SAMPLE,
    KEY_TRACE,
    KEY_PROFILE,
    KEY_PROGRESS,
    KEY_ENGINE,
    KEY_KERNELS,
    KEY_PRECISION,
    KEY_THREADS,
    KEY_STAGES,
    KEY_MICRO_BATCHES,
    KEY_TUNE,
    KEY_BACKEND,
    KEY_GROUP_TIMEOUT,
    KEY_SHARD_OPTIMIZER,
    KEY_BUCKET_MB,
    KEY_NO_OVERLAP,
    KEY_CHECK_REPLICAS,
};

static const struct argp_option options[] = {
    {NULL, 0, NULL, 0, "Model and data", 1},
    {"model", KEY_MODEL, "NAME|FILE", 0,
     "linreg, toy, mlp, cnn (the default), resnet18, resnet34, resnet50 or gpt2, also with "
     "other sizes than the usual: gpt2:layers=12,heads=12,width=768,context=1024,vocab=50257; "
     "or a file with a line for each layer, such as ./net.model",
     0},
    {"data", KEY_DATA, "WHAT", 0,
     "digits: 1,797 handwritten digits inside the program (the default); synthetic: a line "
     "with noise, for linreg; or a directory with MNIST's four files, plain or .gz; for gpt2 "
     "a file: tokens, if its name ends in .bin, else text, of which each byte is a token",
     0},
    {"epochs", KEY_EPOCHS, "N", 0,
     "Passes over the training data (default 20); 0 only evaluates", 0},
    {"steps", KEY_STEPS, "N", 0, "End after N steps (default: when the epochs are done)",
     0},
    {"batch-size", KEY_BATCH_SIZE, "N", 0, "Samples of each rank per step (default 32)",
     0},
    {"target-accuracy", KEY_TARGET, "PERCENT", 0,
     "Stop after the first epoch with this accuracy on the test set; exit code 3 if none "
     "reaches it (default with the digits and no --epochs: 97)",
     0},
    {"seed", KEY_SEED, "N", 0, "Seed of weights, order and dropout (default 1)", 0},

    {NULL, 0, NULL, 0, "Training", 2},
    {"optimizer", KEY_OPTIMIZER, "NAME", 0,
     "sgd, adam, adamw or adadelta (defaults: linreg and resnet18 sgd, toy and mlp adam, cnn "
     "adadelta, gpt2 adamw)",
     0},
    {"lr", KEY_LR, "X", 0,
     "Learning rate (defaults: sgd 0.01, adam and adamw 0.001, adadelta 1; linreg 0.05)",
     0},
    {"momentum", KEY_MOMENTUM, "X", 0, "Momentum of sgd (default 0)", 0},
    {"weight-decay", KEY_WEIGHT_DECAY, "X", 0,
     "L2 penalty (default 0); adamw's is of the weights (default 0.01)", 0},
    {"schedule", KEY_SCHEDULE, "HOW", 0,
     "Learning rate over time: constant (the default), step:FACTOR after each epoch, "
     "cosine or linear down to 0",
     0},
    {"warmup", KEY_WARMUP, "STEPS", 0,
     "Steps in which the learning rate rises (default 0)", 0},
    {"no-dropout", KEY_NO_DROPOUT, NULL, 0, "Train without dropout", 0},
    {"sync-batch-norm", KEY_SYNC_NORMS, NULL, 0,
     "Normalise over the samples of all ranks (default: each rank over its own)", 0},
    {"augment", KEY_AUGMENT, "HOW", 0,
     "Shift training images by up to 4 pixels (crop, or crop:PIXELS) or mirror them "
     "(flip): crop, flip or crop,flip",
     0},
    {"normalize", KEY_NORMALIZE, "HOW", 0,
     "Mean and deviation of each channel: data (the default: of the training images), "
     "mnist, cifar10, cifar100, imagenet, none, or numbers: M,M,M/D,D,D",
     0},
    {"accumulate", KEY_ACCUMULATE, "N", 0,
     "Sum the gradients of N batches before each step (default 1)", 0},
    {"clip-norm", KEY_CLIP_NORM, "X", 0,
     "Scale a step's gradients so that their norm is at most X (default: no limit)", 0},
    {"on-nan", KEY_ON_NAN, "WHAT", 0,
     "When a loss or gradient is not finite: stop (the default), or skip the step", 0},

    {NULL, 0, NULL, 0, "Checkpoint and resume", 3},
    {"checkpoint", KEY_CHECKPOINT, "PLACE", 0,
     "Write checkpoints to this file, or into this directory (it exists, or the name ends "
     "in /)",
     0},
    {"checkpoint-every", KEY_CHECKPOINT_EVERY, "STEPS", 0,
     "Also every STEPS steps (default: after each epoch, and at the end)", 0},
    {"checkpoint-shard-mb", KEY_CHECKPOINT_SHARD_MB, "X", 0,
     "All ranks together write checkpoints larger than this (default 1024)", 0},
    {"peer-checkpoint", KEY_PEER_CHECKPOINT, "STEPS", OPTION_ARG_OPTIONAL,
     "Keep the state in memory of each host and of the next, so that a lost host costs at "
     "most STEPS steps (10 without a number)",
     0},
    {"resume", KEY_RESUME, "PLACE", OPTION_ARG_OPTIONAL,
     "Resume from this checkpoint; without PLACE, from that of --checkpoint if it exists",
     0},

    {NULL, 0, NULL, 0, "Progress and reports", 4},
    {"log", KEY_LOG, "FILE", 0, "Write a JSON object per line: each step, each epoch", 0},
    {"plot", KEY_PLOT, "FILE", 0,
     "Plot loss and accuracy as SVG (default ddp-train.svg; 'none' for none)", 0},
    {"logits", KEY_LOGITS, "FILE", 0,
     "Write the model's outputs for the test set as safetensors", 0},
    {"sample", KEY_SAMPLE, "N", 0,
     "At the end, write N tokens as the model goes on with a text", 0},
    {"trace", KEY_TRACE, "FILE", 0, "Write a timeline of each rank, for ui.perfetto.dev",
     0},
    {"profile", KEY_PROFILE, NULL, 0,
     "On a GPU, mark the host's work by NVTX ranges, for nsys", 0},
    {"progress", KEY_PROGRESS, "HOW", 0,
     "bar, lines, none, or auto: a bar on a terminal and lines elsewhere", 0},

    {NULL, 0, NULL, 0, "Computation", 5},
    {"engine", KEY_ENGINE, "NAME", 0,
     "auto (the default: a GPU if every rank has one, else the CPU), cpu or cuda", 0},
    {"kernels", KEY_KERNELS, "NAME", 0,
     "Kernels of the CPU engine; an unknown name lists them", 0},
    {"precision", KEY_PRECISION, "WHAT", 0,
     "fp32 (the default) or bf16: products of bfloat16, sums and weights in fp32; on a GPU "
     "also tf32: fp32 with products of 10 bits, and fp16: as bf16, with a scaled loss",
     0},
    {"threads", KEY_THREADS, "N", 0,
     "Threads of each rank (default: OMP_NUM_THREADS, else its share of the CPUs)", 0},
    {"stages", KEY_STAGES, "N", 0,
     "Split the model over N engines of each rank, 1 (the default) or 2", 0},
    {"micro-batches", KEY_MICRO_BATCHES, "N", 0,
     "Micro-batches of a batch in flight in the pipeline (default 4)", 0},
    {"tune", KEY_TUNE, "SECONDS", OPTION_ARG_OPTIONAL,
     "On a GPU, measure at the start which algorithms are the fastest, for that long at "
     "most (5 without a number; default: the libraries' own choice)",
     0},
    {"backend", KEY_BACKEND, "NAME", 0,
     "Communication: auto (the default: shared memory within a host, TCP between hosts) or "
     "tcp",
     0},
    {"group-timeout", KEY_GROUP_TIMEOUT, "TIME", 0,
     "How long to wait for a rank (default 5m)", 0},
    {"shard-optimizer", KEY_SHARD_OPTIMIZER, NULL, 0,
     "Each rank keeps and updates only its part of the optimizer's state", 0},
    {"bucket-mb", KEY_BUCKET_MB, "X", 0,
     "Reduce gradients in buckets of this many MiB, the first 1 (default: buckets by "
     "measured time)",
     0},
    {"no-overlap", KEY_NO_OVERLAP, NULL, 0,
     "Reduce the gradients after backward, not during it", 0},
    {"check-replicas", KEY_CHECK_REPLICAS, NULL, 0,
     "After each epoch, compare the parameters' checksums over the ranks", 0},
    {0}};

/* ---- the parser ---- */

/* What is needed only while parsing. */
struct parse {
    struct train_config *c; /* borrowed */
    struct ddp_err *err;    /* borrowed; may be NULL */
    bool epochs_given;
    bool after_resume; /* the last option was a bare --resume: a name may follow */
};

static int set_real(const char *text, double lo, double hi, float *out,
                    struct ddp_err *err)
{
    double value;
    if (value_real(text, lo, hi, &value, err) < 0)
        return -1;
    *out = (float)value;
    return 0;
}

static int set_count(const char *text, uint64_t *out, struct ddp_err *err)
{
    long long n;
    if (value_integer(text, 1, LLONG_MAX, &n, err) < 0)
        return -1;
    *out = (uint64_t)n;
    return 0;
}

static int set_learning(int key, const char *text, struct parse *p)
{
    struct train_config *c = p->c;
    switch (key) {
    case KEY_MODEL:
        return value_model(text, &c->model, p->err);
    case KEY_DATA:
        return value_file(text, &c->data, p->err);
    case KEY_EPOCHS:
        p->epochs_given = true;
        return value_int(text, 0, 1000000, &c->epochs, p->err);
    case KEY_STEPS:
        return set_count(text, &c->steps, p->err);
    case KEY_WARMUP:
        return set_count(text, &c->schedule.warmup, p->err);
    case KEY_BATCH_SIZE:
        return value_int(text, 1, 65536, &c->batch_size, p->err);
    case KEY_TARGET:
        return value_real(text, 0, 100, &c->target, p->err);
    case KEY_OPTIMIZER:
        return value_optimizer(text, &c->optim, p->err);
    case KEY_LR:
        return value_real(text, 0, 1e6, &c->lr, p->err);
    case KEY_MOMENTUM:
        return set_real(text, 0, 0.9999, &c->optim_settings.momentum, p->err);
    case KEY_WEIGHT_DECAY:
        return set_real(text, 0, 1e6, &c->optim_settings.decay, p->err);
    case KEY_SCHEDULE:
        c->schedule_text = text;
        return schedule_parse(text, &c->schedule, p->err);
    case KEY_NO_DROPOUT:
        c->dropout = false;
        return 0;
    case KEY_SYNC_NORMS:
        c->sync_norms = true;
        return 0;
    case KEY_AUGMENT:
        c->augment_text = text;
        return value_augment(text, &c->augment, p->err);
    case KEY_NORMALIZE:
        return normalise_parse(text, &c->normalise, p->err);
    case KEY_ACCUMULATE:
        return value_int(text, 1, 4096, &c->accumulate, p->err);
    case KEY_CLIP_NORM:
        return value_real(text, 1e-9, 1e9, &c->clip_norm, p->err);
    case KEY_ON_NAN:
        return value_on_nan(text, &c->skip_bad, p->err);
    }
    return 1; /* not one of these */
}

static int set_seed(const char *text, struct parse *p)
{
    long long seed;
    if (value_integer(text, 0, LLONG_MAX, &seed, p->err) < 0)
        return -1;
    p->c->seed = (uint64_t)seed;
    p->c->seed_given = true;
    return 0;
}

static int set_shard_bytes(const char *text, struct parse *p)
{
    double mb;
    if (value_real(text, 0, 1e9, &mb, p->err) < 0)
        return -1;
    p->c->shard_checkpoint_bytes = (size_t)(mb * (1 << 20));
    return 0;
}

static int set_bucket(const char *text, struct parse *p)
{
    double mb;
    if (value_real(text, 0.001, 4096, &mb, p->err) < 0)
        return -1;
    p->c->bucket_given = true;
    p->c->bucket_bytes = (size_t)(mb * (1 << 20));
    if (p->c->first_bucket_bytes > p->c->bucket_bytes)
        p->c->first_bucket_bytes = p->c->bucket_bytes;
    return 0;
}

static int set_files(int key, const char *text, struct parse *p)
{
    struct train_config *c = p->c;
    switch (key) {
    case KEY_CHECKPOINT:
        return value_file(text, &c->checkpoint, p->err);
    case KEY_CHECKPOINT_EVERY:
        return value_int(text, 1, INT_MAX, &c->checkpoint_every, p->err);
    case KEY_CHECKPOINT_SHARD_MB:
        return set_shard_bytes(text, p);
    case KEY_PEER_CHECKPOINT:
        c->peer_steps = 10;
        return text ? value_int(text, 1, 1000000, &c->peer_steps, p->err) : 0;
    case KEY_TRACE:
        return value_file(text, &c->trace, p->err);
    case KEY_RESUME:
        c->resume = text;
        c->resume_if_there = p->after_resume = text == NULL;
        return 0;
    case KEY_LOG:
        return value_file(text, &c->log, p->err);
    case KEY_PLOT:
        c->plot_given = true;
        return value_file(text, &c->plot, p->err);
    case KEY_LOGITS:
        return value_file(text, &c->logits, p->err);
    case KEY_SAMPLE:
        return value_int(text, 1, 1 << 20, &c->sample, p->err);
    }
    return 1;
}

static int set_running(int key, const char *text, struct parse *p)
{
    static const char *const engines[] = {"auto", "cpu", "cuda", NULL};
    static const char *const backends[] = {"auto", "tcp", NULL};
    struct train_config *c = p->c;
    switch (key) {
    case KEY_SEED:
        return set_seed(text, p);
    case KEY_PROFILE:
        c->profile = true;
        return 0;
    case KEY_PROGRESS:
        return progress_parse(text, &c->progress, p->err);
    case KEY_ENGINE:
        return value_choice(text, engines, &c->engine, p->err);
    case KEY_KERNELS:
        c->kernels = text;
        return 0;
    case KEY_PRECISION:
        return value_precision(text, &c->precision, p->err);
    case KEY_THREADS:
        return value_int(text, 1, 4096, &c->threads, p->err);
    case KEY_STAGES:
        return value_int(text, 1, 2, &c->stages, p->err);
    case KEY_MICRO_BATCHES:
        return value_int(text, 1, 64, &c->micro_batches, p->err);
    case KEY_TUNE:
        c->tune = 5;
        return text ? value_real(text, 0, 600, &c->tune, p->err) : 0;
    case KEY_GROUP_TIMEOUT:
        return value_timeout(text, &c->group_timeout_ms, p->err);
    case KEY_SHARD_OPTIMIZER:
        c->shard_optimizer = true;
        return 0;
    case KEY_BACKEND:
        return value_choice(text, backends, &c->backend, p->err);
    case KEY_BUCKET_MB:
        return set_bucket(text, p);
    case KEY_NO_OVERLAP:
        c->overlap = false;
        return 0;
    case KEY_CHECK_REPLICAS:
        c->check_replicas = true;
        return 0;
    }
    return 1;
}

static const char *option_name(int key)
{
    for (size_t i = 0; i < ARRAY_LEN(options); i++) {
        if (options[i].key == key)
            return options[i].name;
    }
    return "?";
}

static error_t on_option(int key, char *text, struct argp_state *state)
{
    struct parse *p = state->input;
    if (key == ARGP_KEY_ARG) {
        if (!p->after_resume) {
            err_set(p->err, "'%s' is not an option: see --help", text);
            return EINVAL;
        }
        p->c->resume = text;
        p->c->resume_if_there = p->after_resume = false;
        return 0;
    }
    if (key < KEY_MODEL || key > KEY_CHECK_REPLICAS)
        return ARGP_ERR_UNKNOWN;
    p->after_resume = false;
    int rc = set_learning(key, text, p);
    if (rc > 0)
        rc = set_files(key, text, p);
    if (rc > 0)
        rc = set_running(key, text, p);
    if (rc == 0)
        return 0;
    err_prefix(p->err, "--%s", option_name(key));
    return EINVAL;
}

/* ---- defaults ---- */

/* The number of ranks on this host, from the launcher's variables. */
static int ranks_here(void)
{
    static const char *const names[] = {"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE",
                                        "MPI_LOCALNRANKS", "PALS_LOCAL_SIZE"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        const char *text = getenv(names[i]);
        int n = text ? atoi(text) : 0;
        if (n > 0)
            return n;
    }
    return 1;
}

static int default_threads(void)
{
    const char *omp = getenv("OMP_NUM_THREADS");
    int threads = omp ? atoi(omp) : 0; /* "4,2" is 4 at the outermost level */
    if (threads >= 1 && threads <= 4096)
        return threads;
    cpu_set_t set;
    int cpus = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    int share = cpus / ranks_here();
    return share > 0 ? share : 1;
}

/* What a model of tokens has, and has not. */
static int check_tokens(const struct parse *p)
{
    const struct train_config *c = p->c;
    if (c->model->task != TASK_TOKENS)
        return c->sample ? err_set(p->err, "--sample: %s writes no text, gpt2 does",
                                   c->model->name)
                         : 0;
    if (!c->data)
        return err_set(p->err, "--model %s needs --data FILE: a text, or tokens",
                       c->model->name);
    if (c->augment.pad || c->augment.flip || c->normalise.channels || c->logits)
        return err_set(p->err, "--augment, --normalize and --logits are for images");
    if (c->engine && strcmp(c->engine, "cuda") == 0)
        return err_set(p->err, "--engine cuda: it has no models of tokens yet, cpu has");
    if (c->stages > 1)
        return err_set(p->err, "--stages: the first and last layers of %s share weights",
                       c->model->name);
    return 0;
}

static int fill_in(struct parse *p)
{
    struct train_config *c = p->c;
    if (!c->model && value_model("cnn", &c->model, p->err) < 0)
        return -1;
    bool line = c->model->task == TASK_REGRESS;
    if (check_tokens(p) < 0)
        return -1;
    if (c->model->task == TASK_TOKENS)
        c->engine = "cpu";
    if (!c->data)
        c->data = line ? "synthetic" : "digits";
    if (line != (strcmp(c->data, "synthetic") == 0))
        return err_set(
            p->err,
            "--model %s cannot learn --data %s: models that regress, such as linreg, "
            "learn 'synthetic', the others learn images",
            c->model->name, c->data);
    if (line && (c->augment.pad || c->augment.flip || c->normalise.channels))
        return err_set(p->err, "--augment and --normalize are for images");
    if (line && isfinite(c->target))
        return err_set(p->err, "--target-accuracy: %s has no accuracy", c->model->name);
    if (!c->optim && value_optimizer(c->model->optimizer, &c->optim, p->err) < 0)
        return err_prefix(p->err, "model '%s': optimizer", c->model->name);
    if (!isfinite(c->lr))
        c->lr = line ? 0.05 : c->optim->lr;
    if (isnan(c->optim_settings.decay))
        c->optim_settings.decay = (float)c->optim->decay;
    if (c->steps && !p->epochs_given)
        c->epochs = INT_MAX;
    if (c->optim_settings.momentum > 0 && strcmp(c->optim->name, "sgd") != 0)
        return err_set(p->err, "--momentum: %s has none, sgd does", c->optim->name);
    if (!p->epochs_given && !isfinite(c->target) && strcmp(c->data, "digits") == 0)
        c->target = 97;
    if (c->sync_norms && c->stages > 1)
        return err_set(p->err, "--sync-batch-norm and --stages: a stage sees one "
                               "micro-batch at a time, and cannot wait for other ranks");
    if (c->resume_if_there) {
        if (!c->checkpoint)
            return err_set(p->err, "--resume without a file needs --checkpoint");
        c->resume = c->checkpoint;
    }
    if (c->peer_steps && c->checkpoint && !c->resume)
        return err_set(p->err,
                       "--peer-checkpoint and --checkpoint need --resume: else an "
                       "attempt that finds no memory would begin anew");
    if (c->checkpoint_every && !c->checkpoint)
        return err_set(p->err, "--checkpoint-every needs --checkpoint");
    if (c->plot && strcmp(c->plot, "none") == 0)
        c->plot = NULL;
    if (c->threads == 0)
        c->threads = default_threads();
    if (!kernels_get_at(c->kernels, c->precision, p->err))
        return err_prefix(p->err, "--kernels");
    return 0;
}

void config_finish(struct train_config *c)
{
    model_type_free(c->model);
    c->model = NULL;
}

int config_parse(int argc, char **argv, struct train_config *out, struct ddp_err *err)
{
    static const char doc[] =
        "Train a model on images with as many ranks as the launcher starts: 'ddprun -np 2 "
        "ddp-train'. Without a launcher it is one rank."
        "\vExit codes: 0 done; 1 failed; 2 wrong options; 3 the target accuracy was not "
        "reached; 75 stopped by SIGTERM or SIGUSR1 after writing a checkpoint: start it again "
        "with --resume; 143, 138 and 130 stopped by SIGTERM, SIGUSR1 and SIGINT.";
    static const struct argp argp = {.options = options, .parser = on_option, .doc = doc};
    *out = (struct train_config){
        .epochs = 20,
        .batch_size = 32,
        .lr = NAN,
        .optim_settings.decay = NAN,
        .target = NAN,
        .schedule_text = "constant",
        .augment_text = "none",
        .dropout = true,
        .seed = 1,
        .plot = "ddp-train.svg",
        .accumulate = 1,
        .stages = 1,
        .micro_batches = 4,
        .group_timeout_ms = 5 * 60 * 1000,
        .shard_checkpoint_bytes = (size_t)1 << 30,
        .first_bucket_bytes = 1 << 20,
        .bucket_bytes = 25 << 20,
        .overlap = true,
    };
    struct parse p = {.c = out, .err = err};
    argp_program_version = "ddp-train " DDP_TRAIN_VERSION;
    argp_err_exit_status = EXIT_USAGE;
    if (argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &p) == 0 && fill_in(&p) == 0)
        return 0;
    config_finish(out);
    return -1;
}
