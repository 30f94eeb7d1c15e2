#include "tests/support/suite.h"

#include "common/ambient_launcher.h"
#include "common/mem.h"
#include "common/strv.h"
#include "worker/config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int parse(const char *line, struct train_config *c, struct ddp_err *err)
{
    static char words[512];
    static char *argv[32];
    int argc = 1;
    argv[0] = words;
    snprintf(words, sizeof words, "ddp-train %s", line);
    strtok(words, " ");
    while ((argv[argc] = strtok(NULL, " ")))
        argc++;
    err->text[0] = '\0';
    return config_parse(argc, argv, c, err);
}

static const struct {
    const char *line, *error;
} wrong[] = {
    {"--batch-size 0", "--batch-size: '0' is not a whole number from 1 to 65536"},
    {"--batch-size 12x", "--batch-size: '12x' is not a whole number from 1 to 65536"},
    {"--epochs -1", "--epochs: '-1' is not a whole number from 0 to 1000000"},
    {"--lr fast", "--lr: 'fast' is not a number from 0 to 1e+06"},
    {"--lr nan", "--lr: 'nan' is not a number from 0 to 1e+06"},
    {"--model rnn",
     "--model: unknown model 'rnn'; there are cnn, gpt2, linreg, llama, mlp, "
     "resnet18, resnet34, resnet50, toy, and files: ./net.model"},
    {"--model gpt2 --sample 5 --prompt t",
     "--model gpt2 needs --data FILE: a text, or tokens; or --epochs 0 with --sample N and "
     "--prompt TEXT"},
    {"--model gpt2 --data t --prompt t",
     "--prompt needs --sample N: how many tokens follow it"},
    {"--model gpt2 --data t --logits l",
     "--augment, --normalize and --logits are for images"},
    {"--sample 5", "--sample: cnn writes no text, gpt2 and llama do"},
    {"--steps 0", "--steps: '0' is not a whole number of 1 or more"},
    {"--optimizer lbfgs",
     "--optimizer: 'lbfgs' is not one of sgd, adam, adamw, adadelta"},
    {"--schedule step:2", "--schedule: '2' is not a factor above 0 and up to 1"},
    {"--schedule often",
     "--schedule: 'often' is not one of constant, step:FACTOR, cosine:FACTOR, linear:FACTOR"},
    {"--schedule constant:1", "--schedule: 'constant' takes no number"},
    {"--seed -5", "--seed: '-5' is not a whole number of 0 or more"},
    {"--target-accuracy 101", "--target-accuracy: '101' is not a number from 0 to 100"},
    {"--progress loud", "--progress: 'loud' is not one of auto, bar, lines, none"},
    {"--precision fp8", "--precision: 'fp8' is not one of fp32, bf16, tf32, fp16"},
    {"--threads 0", "--threads: '0' is not a whole number from 1 to 4096"},
    {"--engine gpu", "--engine: 'gpu' is not one of auto, cpu, cuda"},
    {"--backend rdma", "--backend: 'rdma' is not one of auto, tcp"},
    {"--bucket-mb 0", "--bucket-mb: '0' is not a number from 0.001 to 4096"},
    {"--augment spin",
     "--augment: 'spin' is not none, or crop, crop:PIXELS (1 to 64) and flip with a comma "
     "between them"},
    {"--augment crop:65,flip",
     "--augment: 'crop:65,flip' is not none, or crop, crop:PIXELS (1 to 64) and flip with a "
     "comma between them"},
    {"--augment flip,",
     "--augment: 'flip,' is not none, or crop, crop:PIXELS (1 to 64) and flip with a comma "
     "between them"},
    {"--normalize 0.5,0.5/0.2",
     "--normalize: '0.5,0.5/0.2' is not data, none, mnist, cifar10, cifar100, imagenet, or "
     "means and deviations such as 0.49,0.48,0.45/0.25,0.24,0.26"},
    {"--normalize 0.5/0", "--normalize: '0.5/0': a deviation is above 0"},
    {"--sync-batch-norm --stages 2",
     "--sync-batch-norm and --stages: a stage sees one micro-batch at a time, and cannot "
     "wait for other ranks"},
    {"--model linreg --augment flip", "--augment and --normalize are for images"},
    {"--accumulate 0", "--accumulate: '0' is not a whole number from 1 to 4096"},
    {"--clip-norm 0", "--clip-norm: '0' is not a number from 1e-09 to 1e+09"},
    {"--on-nan ignore", "--on-nan: 'ignore' is not one of stop, skip"},
    {"--stages 3", "--stages: '3' is not a whole number from 1 to 2"},
    {"--micro-batches 0", "--micro-batches: '0' is not a whole number from 1 to 64"},
    {"--group-timeout 0s", "--group-timeout: '0s' is no time to wait"},
    {"--resume", "--resume without a file needs --checkpoint"},
    {"--checkpoint c --resume=", "--resume: it must not be empty"},
    {"--sample 4 --prompt=", "--prompt: it must not be empty"},
    {"--checkpoint-every 5", "--checkpoint-every needs --checkpoint"},
    {"--momentum 0.9", "--momentum: adadelta has none, sgd does"},
    {"--decay-matrices-only", "--decay-matrices-only needs --weight-decay"},
    {"--beta2 0.95", "--beta2: adadelta has none, adam and adamw do"},
    {"--model linreg --data digits",
     "--model linreg cannot learn --data digits: models that regress, such as linreg, learn 'synthetic', the others "
     "learn images"},
    {"--data synthetic",
     "--model cnn cannot learn --data synthetic: models that regress, such as linreg, learn 'synthetic', the others "
     "learn images"},
    {"--model linreg --label-smoothing 0.1", "--label-smoothing: linreg has no labels"},
    {"--model linreg --target-accuracy 90", "--target-accuracy: linreg has no accuracy"},
    {"mnist", "'mnist' is not an option: see --help"},
    {"--resume a b", "'b' is not an option: see --help"},
};

LOOP_TEST(wrong_options_are_one_line, ARRAY_LEN(wrong))
{
    struct train_config c;
    struct ddp_err err;
    ck_assert_int_eq(parse(wrong[_i].line, &c, &err), -1);
    ck_assert_str_eq(err.text, wrong[_i].error);
}

static const struct {
    const char *line, *data, *optim;
    double lr, target;
    float decay;
} defaults[] = {
    {"", "digits", "adadelta", 1, 97},
    {"--model toy --optimizer adamw", "digits", "adamw", 0.001, 97, 0.01f},
    {"--model toy --optimizer adamw --weight-decay 0.5", "digits", "adamw", 0.001, 97,
     0.5f},
    {"--epochs 3", "digits", "adadelta", 1, -1},
    {"--steps 3", "digits", "adadelta", 1, -1},
    {"--epochs 3 --target-accuracy 90", "digits", "adadelta", 1, 90},
    {"--data d", "d", "adadelta", 1, -1},
    {"--model mlp", "digits", "adam", 0.001, 97},
    {"--model mlp --optimizer sgd --momentum 0.9", "digits", "sgd", 0.01, 97},
    {"--model linreg", "synthetic", "sgd", 0.05, -1},
    {"--lr 0", "digits", "adadelta", 0, 97},
};

LOOP_TEST(defaults_follow_the_model, ARRAY_LEN(defaults))
{
    struct train_config c;
    struct ddp_err err;
    ck_ok(parse(defaults[_i].line, &c, &err), err);
    ck_assert_str_eq(c.data, defaults[_i].data);
    ck_assert_str_eq(c.optim->name, defaults[_i].optim);
    ck_assert_double_eq(c.lr, defaults[_i].lr);
    ck_assert_double_eq(isfinite(c.target) ? c.target : -1, defaults[_i].target);
    ck_assert(c.optim_settings.decay == defaults[_i].decay);
    config_finish(&c);
}

static const struct {
    const char *line, *resume;
    bool if_there;
} resumes[] = {
    {"", NULL, false},
    {"--resume=r", "r", false},
    {"--resume r", "r", false},
    {"--checkpoint c --resume", "c", true},
    {"--resume --checkpoint c", "c", true},
    {"--checkpoint c --resume r", "r", false},
};

LOOP_TEST(resume_takes_a_place_or_the_checkpoints, ARRAY_LEN(resumes))
{
    struct train_config c;
    struct ddp_err err;
    ck_ok(parse(resumes[_i].line, &c, &err), err);
    ck_assert_pstr_eq(c.resume, resumes[_i].resume);
    ck_assert_int_eq(c.resume_if_there, resumes[_i].if_there);
    config_finish(&c);
}

TEST(threads_come_from_the_launcher)
{
    struct train_config c;
    struct ddp_err err;
    setenv("OMP_NUM_THREADS", "3", 1);
    ck_ok(parse("", &c, &err), err);
    ck_assert_int_eq(c.how.threads, 3);
    config_finish(&c);
    ck_ok(parse("--threads 5", &c, &err), err);
    ck_assert_int_eq(c.how.threads, 5);
    config_finish(&c);
    unsetenv("OMP_NUM_THREADS");
    for (size_t i = 0; i < ambient_launchers_len; i++) {
        const struct ambient_launcher *by = &ambient_launchers[i];
        if (!by->local_size)
            continue;
        setenv(by->rank, "0", 1);
        setenv(by->size, "100000", 1);
        setenv(by->local_size, "100000", 1);
        if (by->needs)
            setenv(by->needs, "1", 0);
        ck_ok(parse("", &c, &err), err);
        ck_assert_int_eq(c.how.threads, 1);
        config_finish(&c);
        unsetenv(by->rank);
        unsetenv(by->size);
        unsetenv(by->local_size);
        if (by->needs)
            unsetenv(by->needs);
    }
}

static const struct {
    const char *text;
    double at, factor;
} schedules[] = {
    {"constant", 3.5, 1},   {"step:0.5", 0.9, 1},    {"step:0.5", 1, 0.5},
    {"step:0.5", 3, 0.125}, {"step", 1, 0.7},        {"linear", 2.5, 0.75},
    {"linear", 10, 0},      {"cosine", 5, 0.5},      {"cosine", 0, 1},
    {"linear:0.2", 5, 0.6}, {"cosine:0.1", 5, 0.55}, {"cosine:0.1", 10, 0.1},
};

LOOP_TEST(schedules_lower_the_rate, ARRAY_LEN(schedules))
{
    struct schedule s = {0};
    struct ddp_err err;
    ck_ok(schedule_parse(schedules[_i].text, &s, &err), err);
    ck_assert_double_eq_tol(
        schedule_factor(&s, schedules[_i].at, schedules[_i].at / 10, 0),
        schedules[_i].factor, 1e-12);
}
