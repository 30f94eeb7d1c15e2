/* worker/config.c - see config.h
 *
 * The table is the only list of options; doc/ddp-train.1.md is tested against --help.
 * What depends on another option (the learning rate on the optimiser, the data on the
 * model) is filled in at the end, when all of them are known.
 */
#include "worker/config.h"

#include "common/affinity.h"
#include "common/ambient_launcher.h"
#include "common/cgroup.h"
#include "common/err.h"
#include "common/mem.h"
#include "worker/config_value.h"
#include "worker/ddp/bucket.h"
#include "worker/kernels/rng.h"

#include <argp.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define AT(member) offsetof(struct train_config, member)

/* Sets more than one member: gets the whole configuration. */

static int read_resume(const struct setting *o, const char *text, void *to,
                       struct ddp_err *err)
{
    struct train_config *c = to;
    c->resume_if_there = text == o->bare;
    return c->resume_if_there ? 0 : value_text(o, text, &c->resume, err);
}

static int read_schedule(const struct setting *o, const char *text, void *to,
                         struct ddp_err *err)
{
    return schedule_parse(text, to, err);
}

static int read_normalise(const struct setting *o, const char *text, void *to,
                          struct ddp_err *err)
{
    return normalise_parse(text, to, err);
}

static const char *const engines[] = {"auto", "cpu", "cuda", NULL};
static const char *const backends[] = {"auto", "tcp", NULL};
static const char *const bad_steps[] = {"stop", "skip", NULL};
static const char *const progress_modes[] = {"auto", "bar", "lines", "none", NULL};

static const struct setting options[] = {
    {.doc = "Model and data"},
    {"model", "NAME|FILE", AT(model), value_model, 0, 0,
     "linreg, toy, mlp, cnn (the default), resnet18, resnet34, resnet50, gpt2 or llama, also "
     "with other sizes: gpt2:layers=12,heads=12,width=768,context=1024,vocab=50257; "
     "or a file with a line for each layer, such as ./net.model",
     .initial = "cnn"},
    {"data", "WHAT", AT(data), value_text, 0, 0,
     "digits: 1,797 handwritten digits inside the program (the default); synthetic: a line "
     "with noise, for linreg; or a directory with MNIST's four files, plain or .gz, arrays "
     "of NumPy, or folders of images; for gpt2 and llama a file: tokens, if its name ends "
     "in .bin, else text, of which each byte is a token",
     .own = true},
    {"epochs", "N", AT(epochs), value_int, 0, 1000000,
     "Passes over the training data (default 20); 0 only evaluates"},
    {"steps", "N", AT(steps), value_count, 1, INFINITY,
     "End after N steps (default: when the epochs are done)"},
    {"batch-size", "N", AT(how.batch_size), value_int, 1, 65536,
     "Samples of each rank per step (default 32)", .initial = "32"},
    {"target-accuracy", "PERCENT", AT(target), value_real, 0, 100,
     "Stop after the first epoch with this accuracy on the test set; exit code 93 if none "
     "reaches it (default with the digits and neither --epochs nor --steps: 97)",
     .own = true},
    {"test-every", "STEPS", AT(test_every), value_int, 1, INT_MAX,
     "Also test every so many steps"},
    {"seed", "N", AT(seed), value_count, 0, INFINITY,
     "Seed of weights, order and dropout (default 1)", .initial = "1"},

    {.doc = "Training"},
    {"optimizer", "NAME", AT(optim), value_optimizer, 0, 0,
     "sgd, adam, adamw or adadelta (defaults: linreg and resnet18 sgd, toy and mlp adam, cnn "
     "adadelta, gpt2 adamw)"},
    {"lr", "X", AT(lr), value_real, 0, 1e6,
     "Learning rate (defaults: sgd 0.01, adam and adamw 0.001, adadelta 1; linreg 0.05)"},
    {"momentum", "X", AT(optim_settings.momentum), value_float, 0, 0.9999,
     "Momentum of sgd (default 0)"},
    {"weight-decay", "X", AT(optim_settings.decay), value_float, 0, 1e6,
     "L2 penalty (default 0); adamw's is of the weights (default 0.01)"},
    {"decay-matrices-only", NULL, AT(decay_matrices), value_on, 0, 0,
     "No weight decay for parameters of one dimension, which are biases and norms"},
    {"beta2", "X", AT(optim_settings.beta2), value_float, 0.5, 0.999999,
     "What adam and adamw keep of the mean of squares in a step (default 0.999)"},
    {"ema", "DECAY", AT(optim_settings.average), value_float, 0, 0.999999,
     "Keep a moving average of the weights, for tests and checkpoints (default: none)"},
    {"schedule", "HOW", AT(schedule), read_schedule, 0, 0,
     "Learning rate over time: constant (the default), step:FACTOR after each epoch, "
     "cosine or linear down to 0, or cosine:FACTOR and linear:FACTOR to that of --lr",
     .initial = "constant"},
    {"warmup", "STEPS", AT(schedule.warmup), value_count, 1, INFINITY,
     "Steps in which the learning rate rises (default 0)"},
    {"label-smoothing", "X", AT(how.label_smoothing), value_float, 0, 1,
     "Spread X of each label's weight over all classes in training (default 0)"},
    {"no-dropout", NULL, AT(how.dropout), value_off, 0, 0, "Train without dropout"},
    {"sync-batch-norm", NULL, AT(how.sync_norms), value_on, 0, 0,
     "Normalise over the samples of all ranks (default: each rank over its own)"},
    {"augment", "HOW", AT(how.augment), value_augment, 0, 0,
     "Shift training images by up to 4 pixels (crop, or crop:PIXELS) or mirror them "
     "(flip): crop, flip or crop,flip",
     .initial = "none"},
    {"normalize", "HOW", AT(normalise), read_normalise, 0, 0,
     "Mean and deviation of each channel: data (the default: of the training images), "
     "mnist, cifar10, cifar100, imagenet, none, or numbers: M,M,M/D,D,D",
     .initial = "data"},
    {"accumulate", "N", AT(how.accumulate), value_int, 1, DROPOUT_BATCHES,
     "Sum the gradients of N batches before each step (default 1)", .initial = "1"},
    {"clip-norm", "X", AT(how.clip_norm), value_real, 1e-9, 1e9,
     "Scale a step's gradients so that their norm is at most X (default: no limit)"},
    {"on-nan", "WHAT", AT(how.skip_bad), value_flag, 0, 0,
     "When a loss or gradient is not finite: stop (the default), or skip the step",
     .words = bad_steps, .initial = "stop"},

    {.doc = "Checkpoint and resume"},
    {"checkpoint", "PLACE", AT(checkpoint), value_text, 0, 0,
     "Write checkpoints to this file, or into this directory (it exists, or the name ends "
     "in /)"},
    {"checkpoint-every", "STEPS", AT(checkpoint_every), value_int, 1, INT_MAX,
     "Also every STEPS steps (default: after each epoch, and at the end)"},
    {"checkpoint-shard-mb", "X", AT(shard_checkpoint_bytes), value_mib, 0, 1e9,
     "All ranks together write checkpoints larger than this (default 1024)",
     .initial = "1024"},
    {"peer-checkpoint", "STEPS", AT(peer_steps), value_int, 1, 1000000,
     "Keep the state in memory of each host and of the next, so that a lost host costs at "
     "most STEPS steps (10 without a number)",
     .bare = "10"},
    {"resume", "PLACE", 0, read_resume, 0, 0,
     "Resume from this checkpoint; without PLACE, from that of --checkpoint if it exists",
     .bare = "", .own = true},
    {"init", "PLACE", AT(init), value_text, 0, 0,
     "Begin with the weights of this checkpoint, unless there is one to resume from",
     .own = true},

    {.doc = "Progress and reports"},
    {"log", "FILE", AT(log), value_text, 0, 0,
     "Write a JSON object per line: each step, each epoch", .own = true},
    {"plot", "FILE", AT(plot), value_text, 0, 0,
     "Plot loss and accuracy as SVG (default ddp-train.svg; 'none' for none)",
     .initial = "ddp-train.svg", .own = true},
    {"logits", "FILE", AT(logits), value_text, 0, 0,
     "Write the model's outputs for the test set as safetensors", .own = true},
    {"sample", "N", AT(sample), value_int, 1, 1 << 20,
     "At the end, write N tokens as the model goes on with a text", .own = true},
    {"prompt", "TEXT", AT(prompt), value_text, 0, 0,
     "The text for --sample, or tokens as numbers (default: the first of the test part); with "
     "--epochs 0 no --data are needed",
     .own = true},
    {"trace", "FILE", AT(trace), value_text, 0, 0,
     "Write a timeline of each rank, for ui.perfetto.dev"},
    {"progress", "HOW", AT(progress), value_word, 0, 0,
     "bar, lines, none, or auto: a bar on a terminal and lines elsewhere",
     .words = progress_modes, .own = true},

    {.doc = "Computation"},
    {"engine", "NAME", AT(engine), value_choice, 0, 0,
     "auto (the default: a GPU if every rank has one, else the CPU), cpu or cuda",
     .words = engines, .initial = "auto"},
    {"kernels", "NAME", AT(kernels), value_text, 0, 0,
     "Kernels of the CPU engine; an unknown name lists them", .own = true},
    {"precision", "WHAT", AT(how.precision), value_word, 0, 0,
     "fp32 (the default) or bf16: products of bfloat16, sums and weights in fp32; on a GPU "
     "also tf32: fp32 with products of 10 bits, and fp16: as bf16, with a scaled loss",
     .words = precision_names, .initial = "fp32"},
    {"threads", "N", AT(how.threads), value_int, 1, 4096,
     "Threads of each rank (default: OMP_NUM_THREADS, else its share of the CPUs)",
     .own = true},
    {"stages", "N", AT(how.stages), value_int, 1, 2,
     "Split the model over N engines of each rank, 1 (the default) or 2", .initial = "1"},
    {"micro-batches", "N", AT(how.micro), value_int, 1, DROPOUT_MICRO,
     "Micro-batches of a batch in flight in the pipeline (default 4)", .initial = "4"},
    {"deterministic", NULL, AT(how.deterministic), value_on, 0, 0,
     "Use only algorithms that give the same bits each time"},
    {"tune", "SECONDS", AT(how.tune), value_real, 0, 600,
     "On a GPU, measure at the start which algorithms are the fastest, for that long at "
     "most (5 without a number; default: the libraries' own choice)",
     .bare = "5", .initial = "0"},
    {"backend", "NAME", AT(backend), value_choice, 0, 0,
     "Communication: auto (the default: shared memory within a host, TCP between hosts) or "
     "tcp",
     .words = backends, .own = true},
    {"group-timeout", "TIME", AT(group_timeout_ms), value_timeout, 0, 0,
     "How long to wait for a rank (default 5m)", .initial = "5m", .own = true},
    {"shard-optimizer", NULL, AT(shard_optimizer), value_on, 0, 0,
     "Each rank keeps and updates only its part of the optimizer's state"},
    {"bucket-mb", "X", AT(bucket_bytes), value_mib, 0.001, 4096,
     "Reduce gradients in buckets of this many MiB, the first 1 (default: buckets by "
     "measured time)"},
    {"no-overlap", NULL, AT(overlap), value_off, 0, 0,
     "Reduce the gradients after backward, not during it"},
    {"check-replicas", NULL, AT(check_replicas), value_on, 0, 0,
     "After each epoch, compare the parameters' checksums over the ranks"},
};

/* ---- the parser ---- */

struct parse {
    struct train_config *c; /* borrowed */
    struct ddp_err *err;    /* borrowed; may be NULL */
    bool after_resume;      /* the last option was a bare --resume: a name may follow */
};

enum { FIRST_KEY = 0x100 }; /* no letter */

static int take(struct parse *p, const struct setting *o, const char *text)
{
    return o->read(o, text, (char *)p->c + o->at, p->err) == 0
               ? 0
               : err_prefix(p->err, "--%s", o->name);
}

static const struct setting *find(const char *name)
{
    const struct setting *o = options;
    while (!o->name || strcmp(o->name, name) != 0)
        o++;
    return o;
}

static error_t on_option(int key, char *text, struct argp_state *state)
{
    struct parse *p = state->input;
    if (key == ARGP_KEY_ARG) {
        if (!p->after_resume) {
            err_set(p->err, "'%s' is not an option: see --help", text);
            return EINVAL;
        }
        p->after_resume = false;
        return take(p, find("resume"), text) < 0 ? EINVAL : 0;
    }
    if (key < FIRST_KEY || key >= FIRST_KEY + (int)ARRAY_LEN(options))
        return ARGP_ERR_UNKNOWN;
    const struct setting *o = &options[key - FIRST_KEY];
    p->after_resume = o->read == read_resume && !text;
    p->c->given[o - options] = text ? text : o->bare ? o->bare : "on";
    return take(p, o, text ? text : o->bare) < 0 ? EINVAL : 0;
}

/* The table as argp wants it. */
static void give_options(struct argp_option *out)
{
    for (size_t i = 0, group = 0; i < ARRAY_LEN(options); i++) {
        const struct setting *o = &options[i];
        group += o->name == NULL;
        out[i] = (struct argp_option){.name = o->name,
                                      .key = o->name ? FIRST_KEY + (int)i : 0,
                                      .arg = o->arg,
                                      .flags = o->bare ? OPTION_ARG_OPTIONAL : 0,
                                      .doc = o->doc,
                                      .group = o->name ? 0 : (int)group};
    }
}

/* ---- texts ---- */

bool config_given(const struct train_config *c, const char *option)
{
    return c->given[find(option) - options] != NULL;
}

const char *config_text(const struct train_config *c, const char *option)
{
    const struct setting *o = find(option);
    return config_given(c, option) ? c->given[o - options] : o->initial;
}

bool config_shared(const struct train_config *c, size_t i, const char **name,
                   const char **text)
{
    for (const struct setting *o = options; o < options + ARRAY_LEN(options); o++) {
        if (!o->name || o->own || i-- > 0)
            continue;
        const char *said = config_text(c, o->name);
        const char *folder = said && o->read == value_model ? strrchr(said, '/') : NULL;
        bool flag = !o->arg || o->read == value_text;
        *name = o->name;
        *text = flag     ? (said ? "on" : "off")
                : folder ? folder + 1
                : said   ? said
                         : "nothing";
        return true;
    }
    return false;
}

_Static_assert(ARRAY_LEN(options) <= CONFIG_ROWS, "a text for each option");

/* ---- defaults ---- */

int config_ranks_here(void)
{
    const struct ambient_launcher *by = ambient_launcher_find(ambient_launcher_env);
    const char *text = by && by->local_size ? getenv(by->local_size) : NULL;
    int n = text ? atoi(text) : 0;
    return n > 0 ? n : 1;
}

static int default_threads(void)
{
    const char *omp = getenv("OMP_NUM_THREADS");
    int threads = omp ? atoi(omp) : 0; /* "4,2" is 4 at the outermost level */
    if (threads >= 1 && threads <= 4096)
        return threads;
    int cpus = affinity_cpus_here(), quota = cgroup_cpus("");
    cpus = quota && quota < cpus ? quota : cpus;
    int share = cpus / config_ranks_here();
    return share > 0 ? share : 1;
}

/* What a model of tokens has, and has not. */
static int check_tokens(const struct parse *p)
{
    const struct train_config *c = p->c;
    if (c->prompt && !c->sample)
        return err_set(p->err, "--prompt needs --sample N: how many tokens follow it");
    if (c->model->task != TASK_TOKENS)
        return c->sample
                   ? err_set(p->err, "--sample: %s writes no text, gpt2 and llama do",
                             c->model->name)
                   : 0;
    if (!c->data && (!c->prompt || c->epochs))
        return err_set(p->err,
                       "--model %s needs --data FILE: a text, or tokens; or --epochs 0 "
                       "with --sample N and --prompt TEXT",
                       c->model->name);
    if (c->how.augment.pad || c->how.augment.flip || c->normalise.channels || c->logits)
        return err_set(p->err, "--augment, --normalize and --logits are for images");
    return 0;
}

static int fill_in(struct parse *p)
{
    struct train_config *c = p->c;
    bool line = c->model->task == TASK_REGRESS, epochs_given = c->epochs >= 0;
    TRY(check_tokens(p));
    if (!c->data && c->model->task != TASK_TOKENS)
        c->data = line ? "synthetic" : "digits";
    if (!c->data) /* nothing is trained or tested: --sample has one text */
        c->how.batch_size = 1;
    if (c->data && line != (strcmp(c->data, "synthetic") == 0))
        return err_set(
            p->err,
            "--model %s cannot learn --data %s: models that regress, such as linreg, "
            "learn 'synthetic', the others learn images",
            c->model->name, c->data);
    if (line && (c->how.augment.pad || c->how.augment.flip || c->normalise.channels))
        return err_set(p->err, "--augment and --normalize are for images");
    if (line && c->how.label_smoothing > 0)
        return err_set(p->err, "--label-smoothing: %s has no labels", c->model->name);
    if (line && isfinite(c->target))
        return err_set(p->err, "--target-accuracy: %s has no accuracy", c->model->name);
    if (!c->optim && value_optimizer(NULL, c->model->optimizer, &c->optim, p->err) < 0)
        return err_prefix(p->err, "model '%s': optimizer", c->model->name);
    if (!isfinite(c->lr))
        c->lr = line ? 0.05 : c->optim->lr;
    if (c->decay_matrices && isnan(c->optim_settings.decay) && c->optim->decay == 0)
        return err_set(p->err, "--decay-matrices-only needs --weight-decay");
    if (isnan(c->optim_settings.decay))
        c->optim_settings.decay = (float)c->optim->decay;
    if (!epochs_given)
        c->epochs = c->steps ? EPOCHS_UNLIMITED : 20;
    if (c->optim_settings.momentum > 0 && strcmp(c->optim->name, "sgd") != 0)
        return err_set(p->err, "--momentum: %s has none, sgd does", c->optim->name);
    if (c->optim_settings.beta2 > 0 && c->optim->rule != RULE_ADAM)
        return err_set(p->err, "--beta2: %s has none, adam and adamw do", c->optim->name);
    if (!epochs_given && !c->steps && !isfinite(c->target) &&
        strcmp(c->data, "digits") == 0)
        c->target = 97;
    if (c->how.sync_norms && c->how.stages > 1)
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
    if (strcmp(c->plot, "none") == 0)
        c->plot = NULL;
    if (!c->bucket_bytes)
        c->bucket_bytes = BUCKET_BYTES;
    if (c->how.threads == 0)
        c->how.threads = default_threads();
    if (!kernels_get(c->kernels, c->how.precision, p->err))
        return err_prefix(p->err, "--kernels");
    return 0;
}

void config_finish(struct train_config *c)
{
    model_type_free(c->model);
}

int config_parse(int argc, char **argv, struct train_config *out, struct ddp_err *err)
{
    static const char doc[] =
        "Train a model on images with as many ranks as the launcher starts: 'ddprun -np 2 "
        "ddp-train'. Without a launcher it is one rank."
        "\vExit codes: 0 done; 1 failed; 2 wrong options; 75 stopped by SIGTERM or SIGUSR1 "
        "after writing a checkpoint: start it again with --resume; 93 the target accuracy was "
        "not reached; 143, 138 and 130 stopped by SIGTERM, SIGUSR1 and SIGINT.";
    static struct argp_option given[ARRAY_LEN(options) + 1];
    static const struct argp argp = {.options = given, .parser = on_option, .doc = doc};
    *out = (struct train_config){
        .epochs = -1,
        .lr = NAN,
        .optim_settings.decay = NAN,
        .target = NAN,
        .how.dropout = true,
        .overlap = true,
    };
    struct parse p = {.c = out, .err = err};
    give_options(given);
    for (const struct setting *o = options; o < options + ARRAY_LEN(options); o++)
        if (o->initial && take(&p, o, o->initial) < 0)
            return -1;
    argp_program_version = "ddp-train " DDP_TRAIN_VERSION;
    argp_err_exit_status = EXIT_USAGE;
    if (argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &p) == 0 && fill_in(&p) == 0)
        return 0;
    config_finish(out);
    return -1;
}
