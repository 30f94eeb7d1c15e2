/* The CPU engine's step, alone: clipping, steps left out, and where a bad number began.
 */
#include "tests/support/suite.h"

#include "common/mem.h"
#include "tests/worker/nn/train_step.h"
#include "worker/ddp/reducer.h"
#include "worker/engine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BATCH = 16 };

struct fixture {
    struct ddp_group *group;
    struct dataset data;
    struct model *model;
    struct optim optim;
    struct engine_job job;
    struct engine *engine;
    uint32_t which[4 * BATCH];
};

static size_t resident_bytes(void)
{
    size_t pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    ck_assert_ptr_nonnull(f);
    ck_assert_int_eq(fscanf(f, "%*u %zu", &pages), 1);
    fclose(f);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* A rank that shares the states with others never touches most of them. */
TEST(states_take_memory_where_they_are_used)
{
    enum { N = 32 << 20 };
    struct optim o;
    struct ddp_err err;
    size_t before = resident_bytes();
    optim_init(&o, optim_find("adamw"), (struct optim_settings){0},
               kernels_get(NULL, PRECISION_FP32, &err), N);
    ck_assert_uint_lt(resident_bytes() - before, N * sizeof(float));
    size_t others = 0;
    for (size_t i = 0; i < N; i++)
        others += o.states[0][i] != 0 || o.states[1][i] != 0;
    ck_assert_uint_eq(others, 0);
    optim_finish(&o);
}

static struct fixture open_engine(const char *model, struct engine_options how)
{
    struct fixture f = {0};
    struct ddp_err err;
    struct ddp_group_options alone = {.rank = 0, .size = 1};
    const struct kernels *k = kernels_get(NULL, PRECISION_FP32, &err);
    f.group = ddp_group_init(&alone, &err);
    ck_assert_msg(f.group != NULL, "%s", err.text);
    ck_ok(dataset_load("digits", NULL, 1, &f.data, &err), err);
    f.model = model_create(model, f.data.shape, BATCH, k, &err);
    ck_assert_msg(f.model != NULL, "%s", err.text);
    optim_init(&f.optim, optim_find("sgd"), (struct optim_settings){0}, k,
               f.model->count);
    model_init(f.model, 1);
    for (uint32_t i = 0; i < ARRAY_LEN(f.which); i++)
        f.which[i] = 3 * i;
    f.job.how = how;
    f.job.group = f.group;
    f.job.model = f.model;
    f.job.kernels = k;
    f.job.how.batch_size = BATCH;
    f.job.how.threads = 1;
    f.job.buckets = (struct reducer_settings){1 << 20, 25 << 20, true, false, false};
    f.job.how.accumulate = how.accumulate ? how.accumulate : 1;
    f.job.how.stages = how.stages ? how.stages : 1;
    f.job.how.micro = 4;
    return f;
}

static void start(struct fixture *f) /* f stands still from here on */
{
    struct ddp_err err;
    f->job.optim = &f->optim;
    f->job.data = &f->data;
    f->engine = engine_cpu.open(&f->job, &err);
    ck_assert_msg(f->engine != NULL, "%s", err.text);
}

static void close_engine(struct fixture *f)
{
    engine_cpu.close(f->engine);
    optim_finish(&f->optim);
    model_destroy(f->model);
    dataset_finish(&f->data);
    ddp_group_destroy(f->group);
}

static struct engine_result step(struct fixture *f, int n)
{
    struct ddp_err err;
    struct engine_result result;
    struct engine_step s = {.which = f->which, .mine = n, .all = n, .lr = 0.5f};
    int rc = engine_cpu.step(f->engine, &s, &result, &err);
    ck_assert_msg(rc == 1, "%s", err.text);
    return result;
}

/* How far a step goes. */
static double distance(const float *a, const float *b, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += pow((double)a[i] - (double)b[i], 2);
    return sqrt(sum);
}

static const struct {
    const char *model;
    int stages, accumulate;
} ways[] = {{"mlp", 1, 1}, {"cnn", 1, 3}, {"mlp", 2, 1}, {"cnn", 2, 2}};

LOOP_TEST(clipped_steps_are_as_long_as_asked, ARRAY_LEN(ways))
{
    struct engine_options how = {
        .stages = ways[_i].stages, .accumulate = ways[_i].accumulate, .clip_norm = 0.01};
    struct fixture f = open_engine(ways[_i].model, how);
    start(&f);
    size_t n = f.model->count;
    float *before = xmemdup(f.model->weights, n * sizeof(float));
    step(&f, BATCH * f.job.how.accumulate);
    ck_assert_double_eq_tol(distance(before, f.model->weights, n), 0.5 * 0.01, 2e-5);
    free(before);
    close_engine(&f);
}

/* One batch of all samples, several, and a pipeline make the same step. */
TEST(all_ways_through_a_step_are_one)
{
    float *first = NULL;
    size_t n = 0;
    for (int way = 0; way < 4; way++) {
        struct engine_options how = {.stages = 1 + way / 2, .accumulate = 2};
        struct fixture f = open_engine("cnn", how);
        if (way % 2)
            f.job.how.micro = 3;
        if (way == 1) { /* more samples to a batch, fewer batches */
            struct ddp_err err;
            model_destroy(f.model);
            f.model = model_create("cnn", f.data.shape, 2 * BATCH, f.job.kernels, &err);
            model_init(f.model, 1);
            f.job.model = f.model;
            f.job.how.batch_size = 2 * BATCH;
        }
        start(&f);
        struct engine_result r = step(&f, 2 * BATCH - 3);
        ck_assert(isfinite(r.loss) && r.sums.bad == 0 && !*r.where);
        n = f.model->count;
        if (first == NULL)
            first = xmemdup(f.model->weights, n * sizeof(float));
        ck_assert_double_le(distance(first, f.model->weights, n), 1e-5);
        close_engine(&f);
    }
    free(first);
}

static const struct {
    const char *model, *param, *where;
    int stages;
    bool skip;
} spoilt[] = {
    {"mlp", "fc2.weight", "'fc2.weight'", 1, false},
    {"cnn", "conv1.bias", "'conv1.bias'", 1, true},
    {"cnn", "fc1.weight", "'fc1.weight'", 2, true},
    {"toy", "net2.bias", "'net2.bias'", 2, false},
};

LOOP_TEST(a_bad_number_is_traced_to_where_it_began, ARRAY_LEN(spoilt))
{
    struct engine_options how = {.stages = spoilt[_i].stages,
                                 .skip_bad = spoilt[_i].skip};
    struct fixture f = open_engine(spoilt[_i].model, how);
    start(&f);
    size_t count = f.model->count;
    const struct param *params = f.model->params;
    size_t n = f.model->nparams;
    for (size_t i = 0; i < n; i++)
        if (strcmp(params[i].name, spoilt[_i].param) == 0)
            f.model->weights[params[i].offset] = NAN;
    float *before = xmemdup(f.model->weights, count * sizeof(float));
    struct engine_result r = step(&f, BATCH);
    ck_assert_str_eq(r.where, spoilt[_i].where);
    ck_assert(isnan(r.loss));
    ck_assert(r.sums.bad == !spoilt[_i].skip && r.sums.skipped == spoilt[_i].skip);
    ck_assert_mem_eq(before, f.model->weights, count * sizeof(float));
    free(before);
    close_engine(&f);
}

TEST(an_overflow_is_traced_to_the_layer_that_made_it)
{
    struct fixture f = open_engine("mlp", (struct engine_options){0});
    start(&f);
    const struct param *params = f.model->params;
    for (size_t i = 0; i < params[2].count;
         i++) /* fc2.weight: finite, its sums are not */
        f.model->weights[params[2].offset + i] = 3e38f;
    struct engine_result r = step(&f, BATCH);
    ck_assert_str_eq(r.where, "the output of 'fc2'");
    close_engine(&f);
}

/* The loss is a number, and the gradients are too large for one. */
TEST(bad_gradients_are_skipped)
{
    struct fixture f = open_engine("toy", (struct engine_options){.skip_bad = true});
    start(&f);
    size_t count = f.model->count;
    const struct param *params = f.model->params;
    for (size_t i = 0; i < params[2].count; i++)
        f.model->weights[params[2].offset + i] = i % 2 ? 3e37f : -3e37f;
    float *before = xmemdup(f.model->weights, count * sizeof(float));
    struct engine_result r = step(&f, BATCH);
    ck_assert(r.sums.skipped == 1 && r.sums.bad == 0);
    ck_assert_mem_eq(before, f.model->weights, count * sizeof(float));
    free(before);
    close_engine(&f);
}

static const struct {
    const char *text;
    bool good;
} plans[] = {{"10,0", true},      {"0", true},     {"", false},  {"10", false},
             {"10,20,0", false},  {"10;0", false}, {",", false}, {"99999999999,0", false},
             {"4,3,2,1,0", false}}; /* of more buckets than toy's 4 parameters */

LOOP_TEST(a_plan_that_cannot_be_is_refused, ARRAY_LEN(plans))
{
    struct ddp_err err;
    struct fixture f = open_engine("toy", (struct engine_options){0});
    struct reducer *r = reducer_create(f.group, f.model, f.job.buckets, &err);
    ck_assert_msg(r != NULL, "%s", err.text);
    ck_assert_int_eq(reducer_use_plan(r, plans[_i].text), plans[_i].good ? 0 : -1);
    char text[64];
    reducer_plan_text(r, text, sizeof text);
    ck_assert(!plans[_i].good || strcmp(text, plans[_i].text) == 0);
    reducer_destroy(r);
    close_engine(&f);
}

TEST(without_overlap_a_plan_changes_nothing)
{
    struct ddp_err err;
    struct fixture f = open_engine("toy", (struct engine_options){0});
    f.job.buckets.overlap = false;
    struct reducer *r = reducer_create(f.group, f.model, f.job.buckets, &err);
    ck_assert_msg(r != NULL, "%s", err.text);
    ck_assert_int_eq(reducer_use_plan(r, "10,0"), 0);
    ck_assert_uint_eq(reducer_buckets(r), 1);
    reducer_destroy(r);
    close_engine(&f);
}
