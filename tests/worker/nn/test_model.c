/* Models against a second opinion: the same network written once more in double, whose
 * finite differences are the gradients. Every test runs for every engine of the build. */
#include "tests/support/suite.h"

#include "common/mem.h"
#include "tests/worker/kernels/engines.h"
#include "tests/worker/nn/train_step.h"
#include "worker/kernels/rng.h"
#include "worker/nn/model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *model;
    struct io_shape io;
    int n;
} cases[] = {
    {"linreg", {1, 1, 5, 1}, 7}, {"linreg", {1, 1, 3, 4}, 1}, {"mlp", {1, 4, 5, 10}, 3},
    {"cnn", {1, 8, 8, 10}, 3},   {"cnn", {3, 9, 7, 4}, 2},    {"toy", {1, 3, 3, 5}, 4},
};

/* ---- the network in double ---- */

struct image {
    int C, H, W;
    double *v;
};

static struct image conv_double(struct image x, const double *w, const double *bias,
                                int K, int R)
{
    struct image y = {K, x.H - R + 1, x.W - R + 1, NULL};
    y.v = xcalloc((size_t)(y.C * y.H * y.W), sizeof(double));
    for (int k = 0; k < K; k++)
        for (int i = 0; i < y.H * y.W; i++) {
            const double *tap = w + k * x.C * R * R;
            double sum = bias[k];
            for (int c = 0; c < x.C; c++)
                for (int r = 0; r < R; r++) {
                    const double *row = x.v + (c * x.H + i / y.W + r) * x.W + i % y.W;
                    for (int s = 0; s < R; s++)
                        sum += *tap++ * row[s];
                }
            y.v[k * y.H * y.W + i] = sum;
        }
    free(x.v);
    return y;
}

static struct image pool_double(struct image x)
{
    struct image y = {x.C, x.H / 2, x.W / 2, NULL};
    y.v = xcalloc((size_t)(y.C * y.H * y.W), sizeof(double));
    for (int i = 0; i < y.C * y.H * y.W; i++) {
        int c = i / (y.H * y.W), oh = i / y.W % y.H, ow = i % y.W;
        const double *p = x.v + (c * x.H + 2 * oh) * x.W + 2 * ow;
        y.v[i] = fmax(fmax(p[0], p[1]), fmax(p[x.W], p[x.W + 1]));
    }
    free(x.v);
    return y;
}

static struct image layer_double(struct image x, const struct layer_spec *l,
                                 const double *w, const double *bias, int outputs)
{
    struct image y;
    if (l->kind == LAYER_CONV) {
        y = conv_double(x, w, bias, outputs, l->size);
    } else { /* a convolution of the whole image, seen as one column of pixels */
        x = (struct image){x.C * x.H * x.W, 1, 1, x.v};
        y = conv_double(x, w, bias, outputs, 1);
    }
    for (int i = 0; l->relu && i < y.C * y.H * y.W; i++)
        y.v[i] = fmax(y.v[i], 0);
    return l->pool ? pool_double(y) : y;
}

static double loss_double(const struct model *m, struct io_shape io,
                          const struct batch *b, const double *weights)
{
    const struct param *params = m->params;
    size_t nparams = m->nparams;
    double total = 0;
    for (int s = 0; s < b->n; s++) {
        struct image x = {io.C, io.H, io.W, NULL};
        x.v = xcalloc((size_t)(io.C * io.H * io.W), sizeof(double));
        for (int i = 0; i < io.C * io.H * io.W; i++)
            x.v[i] = (double)b->x[s * io.C * io.H * io.W + i];
        for (size_t i = 0; i < nparams; i += 2)
            x = layer_double(x, &m->type->layers[i / 2], weights + params[i].offset,
                             weights + params[i + 1].offset, params[i].dims[0]);
        double sum = 0;
        for (int k = 0; k < io.outputs; k++)
            sum += m->type->task == TASK_CLASSIFY
                       ? exp(x.v[k])
                       : pow(x.v[k] - (double)b->targets[s * io.outputs + k], 2);
        total += m->type->task == TASK_CLASSIFY ? log(sum) - x.v[b->labels[s]]
                                                : sum / io.outputs;
        free(x.v);
    }
    return total / b->n;
}

/* ---- fixtures ---- */

static struct batch a_batch(struct io_shape io, int n)
{
    size_t in = (size_t)(io.C * io.H * io.W) * n, out = (size_t)io.outputs * n;
    float *x = xcalloc(in, sizeof(float)), *targets = xcalloc(out, sizeof(float));
    uint32_t *labels = xcalloc((size_t)n, sizeof *labels);
    for (size_t i = 0; i < in; i++)
        x[i] = 2 * rng_uniform(11, i) - 1;
    for (size_t i = 0; i < out; i++)
        targets[i] = 2 * rng_uniform(12, i) - 1;
    for (int i = 0; i < n; i++)
        labels[i] = (uint32_t)(rng_word(13, (uint64_t)i) % (unsigned)io.outputs);
    return (struct batch){.x = x, .labels = labels, .targets = targets, .n = n};
}

static void free_batch(struct batch *b)
{
    free((void *)(uintptr_t)b->x);
    free((void *)(uintptr_t)b->labels);
    free((void *)(uintptr_t)b->targets);
}

static struct model *a_model(int which, int engine, int max_batch)
{
    struct ddp_err err;
    const struct kernels *k = engine_at(engine);
    struct model *m =
        model_create(cases[which].model, cases[which].io, max_batch, k, &err);
    ck_assert_msg(m != NULL, "%s", err.text);
    model_init(m, 3);
    return m;
}

/* ---- tests ---- */

LOOP_TEST(gradients_are_finite_differences, ARRAY_LEN(cases) * MAX_ENGINES)
{
    int which = _i % (int)ARRAY_LEN(cases), engine = _i / (int)ARRAY_LEN(cases);
    if (engine >= nengines())
        return;
    /* room for more samples than come: the last batch of an epoch is small */
    struct model *m = a_model(which, engine, cases[which].n + 2);
    struct batch b = a_batch(cases[which].io, cases[which].n);
    m->dropout = false;
    int correct;
    float loss = train_step(
        m, (struct model_pass){.batch = &b, .scale = 0.5f, .seed = 1, .draw = 1});

    size_t n = m->count;
    double *w = xcalloc(n, sizeof(double));
    for (size_t i = 0; i < n; i++)
        w[i] = (double)m->weights[i];
    ck_assert_double_eq_tol((double)loss, loss_double(m, cases[which].io, &b, w), 1e-5);
    ck_assert_double_eq_tol((double)model_evaluate(m, &b, &correct), (double)loss, 1e-6);

    const struct param *params = m->params;
    size_t nparams = m->nparams;
    for (size_t p = 0; p < nparams; p++)
        for (int probe = 0; probe < 4; probe++) {
            size_t i = params[p].offset + rng_word(p, (uint64_t)probe) % params[p].count;
            double was = w[i], eps = 1e-6, up, down;
            w[i] = was + eps;
            up = loss_double(m, cases[which].io, &b, w);
            w[i] = was - eps;
            down = loss_double(m, cases[which].io, &b, w);
            w[i] = was;
            double want = 0.5 * (up - down) / (2 * eps), got = (double)model_grads(m)[i];
            ck_assert_msg(fabs(want - got) < 1e-6 + 1e-4 * fabs(want),
                          "%s %s[%zu]: %g, want %g", m->k->name, params[p].name,
                          i - params[p].offset, got, want);
        }
    free(w);
    free_batch(&b);
    model_destroy(m);
}

/* With dropout, the loss is a function of the weights as long as (seed, draw) stay. */
LOOP_TEST(gradients_pass_through_dropout, MAX_ENGINES)
{
    if (_i >= nengines())
        return;
    struct model *m = a_model(3, _i, 16);
    struct batch b = a_batch(cases[3].io, 16);
    float loss =
        train_step(m, (struct model_pass){.batch = &b, .scale = 1, .seed = 5, .draw = 9});
    size_t n = m->count;
    float *g = xmemdup(model_grads(m), n * sizeof(float));
    double slope = 0;
    for (size_t i = 0; i < n; i++)
        slope += (double)g[i] * (double)g[i];
    float eps = (float)(1e-2 / sqrt(slope)), side[2];
    for (int k = 0; k < 2; k++) {
        for (size_t i = 0; i < n; i++)
            m->weights[i] += (k ? 2 : -1) * eps * g[i];
        side[k] = train_step(
            m, (struct model_pass){.batch = &b, .scale = 1, .seed = 5, .draw = 9});
    }
    double got = (double)(side[1] - side[0]) / (2 * (double)eps);
    ck_assert_msg(fabs(got / slope - 1) < 0.02, "slope %g, want %g", got, slope);
    ck_assert(train_step(m, (struct model_pass){
                                .batch = &b, .scale = 1, .seed = 5, .draw = 10}) != loss);
    ck_assert(train_step(m, (struct model_pass){
                                .batch = &b, .scale = 1, .seed = 6, .draw = 9}) != loss);
    free(g);
    free_batch(&b);
    model_destroy(m);
}

struct seen {
    size_t low, calls;
};

static void note_range(size_t offset, size_t count, void *arg)
{
    struct seen *seen = arg;
    ck_assert_uint_eq(offset + count, seen->low);
    seen->low = offset;
    seen->calls++;
}

LOOP_TEST(ranges_come_from_last_to_first_and_cover_all, ARRAY_LEN(cases))
{
    struct model *m = a_model(_i, 0, 8);
    struct batch b = a_batch(cases[_i].io, cases[_i].n);
    struct seen seen = {m->count, 0};
    float *grads = xcalloc(m->count, sizeof(float));
    model_set_grads(m, grads);
    train_step(m, (struct model_pass){.batch = &b,
                                      .scale = 1,
                                      .seed = 1,
                                      .draw = 1,
                                      .ready = note_range,
                                      .arg = &seen});
    ck_assert_uint_eq(seen.low, 0);
    ck_assert_uint_ge(seen.calls, 1);
    double sum = 0;
    for (size_t i = 0; i < m->count; i++)
        sum += fabs((double)grads[i]);
    ck_assert_double_gt(sum, 0);
    free(grads);
    free_batch(&b);
    model_destroy(m);
}

/* A network that has gone astray must not look healthy: ReLU and pooling compare. */
LOOP_TEST(what_is_not_a_number_reaches_the_loss, ARRAY_LEN(cases) * MAX_ENGINES)
{
    int which = _i % (int)ARRAY_LEN(cases), engine = _i / (int)ARRAY_LEN(cases);
    if (engine >= nengines())
        return;
    struct model *m = a_model(which, engine, cases[which].n);
    struct batch b = a_batch(cases[which].io, cases[which].n);
    int correct;
    ck_assert(!isnan(model_evaluate(m, &b, &correct)));
    *(float *)(uintptr_t)b.x = NAN;
    ck_assert(isnan(model_evaluate(m, &b, &correct)));
    free_batch(&b);
    model_destroy(m);
}

/* The linker leads every call here: see meson.build. */
static long allocations;
void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__real_aligned_alloc(size_t align, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_aligned_alloc(size_t align, size_t n);

void *__wrap_malloc(size_t n)
{
    allocations++;
    return __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
    allocations++;
    return __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n)
{
    allocations++;
    return __real_realloc(p, n);
}

void *__wrap_aligned_alloc(size_t align, size_t n)
{
    allocations++;
    return __real_aligned_alloc(align, n);
}

LOOP_TEST(steps_allocate_nothing, ARRAY_LEN(cases) * MAX_ENGINES)
{
    int which = _i % (int)ARRAY_LEN(cases), engine = _i / (int)ARRAY_LEN(cases);
    if (engine >= nengines())
        return;
    allocations = 0;
    struct model *m = a_model(which, engine, cases[which].n);
    struct batch b = a_batch(cases[which].io, cases[which].n);
    ck_assert_int_gt(allocations, 0);
    int correct;
    model_grads(m); /* allocated at the first use; the trainer sets shared memory */
    allocations = 0;
    train_step(m, (struct model_pass){.batch = &b, .scale = 1, .seed = 1, .draw = 1});
    model_evaluate(m, &b, &correct);
    ck_assert_int_eq(allocations, 0);
    free_batch(&b);
    model_destroy(m);
}

TEST(initial_values_are_uniform_within_pytorchs_bounds)
{
    struct model *m = a_model(3, 0, 1), *again = a_model(3, nengines() - 1, 4);
    size_t n = m->count;
    const struct param *params = m->params;
    size_t nparams = m->nparams;
    ck_assert_mem_eq(m->weights, again->weights, n * sizeof(float));
    for (size_t p = 0; p < nparams; p++) {
        const struct param *weight = &params[p / 2 * 2];
        double fan_in = (double)weight->count / weight->dims[0], bound = 1 / sqrt(fan_in);
        double sum = 0, squares = 0, most = 0;
        for (size_t i = 0; i < params[p].count; i++) {
            double v = (double)m->weights[params[p].offset + i] / bound;
            sum += v;
            squares += v * v;
            most = fmax(most, fabs(v));
        }
        double count = (double)params[p].count, mean = sum / count;
        ck_assert_double_le(most, 1.0000001);
        if (count < 100)
            continue;
        ck_assert_double_le(fabs(mean), 4 * sqrt(1 / 3.0 / count));
        ck_assert_double_le(fabs(squares / count - 1 / 3.0), 4 * sqrt(4 / 45.0 / count));
    }
    model_init(again, 4);
    ck_assert_mem_ne(m->weights, again->weights, n * sizeof(float));
    model_destroy(m);
    model_destroy(again);
}

TEST(parameters_have_pytorchs_names_and_shapes)
{
    static const struct {
        const char *name;
        int ndim, dims[4];
    } want[] = {
        {"conv1.weight", 4, {32, 1, 3, 3}},  {"conv1.bias", 1, {32}},
        {"conv2.weight", 4, {64, 32, 3, 3}}, {"conv2.bias", 1, {64}},
        {"fc1.weight", 2, {128, 9216}},      {"fc1.bias", 1, {128}},
        {"fc2.weight", 2, {10, 128}},        {"fc2.bias", 1, {10}},
    };
    struct ddp_err err;
    struct model *m = model_create("cnn", (struct io_shape){1, 28, 28, 10}, 1,
                                   kernels_get(NULL, PRECISION_FP32, &err), &err);
    ck_assert_ptr_nonnull(m);
    const struct param *params = m->params;
    size_t n = m->nparams;
    ck_assert_uint_eq(n, ARRAY_LEN(want));
    for (size_t i = 0; i < n; i++) {
        ck_assert_str_eq(params[i].name, want[i].name);
        ck_assert_int_eq(params[i].ndim, want[i].ndim);
        ck_assert_mem_eq(params[i].dims, want[i].dims, sizeof(want[i].dims));
    }
    ck_assert_uint_eq(m->count, 1199882);
    model_destroy(m);
}

static const struct {
    const char *model;
    struct io_shape io;
    int max_batch;
    const char *text;
} refused[] = {
    {"resnet",
     {1, 28, 28, 10},
     1,
     "unknown model 'resnet'; there are cnn, gpt2, linreg, llama, mlp, resnet18, "
     "resnet34, resnet50, toy, and files: ./net.model"},
    {"cnn",
     {1, 5, 28, 10},
     1,
     "cnn.model:7: 'conv2' is given 3x26: the model needs larger images than 5x28"},
    {"mlp",
     {1, 28, 28, 0},
     1,
     "model 'mlp' cannot have inputs of 1x28x28, 0 outputs, batches of 1"},
    {"mlp",
     {1, 1, 1 << 20, 10},
     65536,
     "model 'mlp' cannot have inputs of 1x1x1048576, 10 outputs, batches of 65536"},
};

TEST(the_arithmetic_of_a_step_is_counted)
{
    struct ddp_err err;
    struct model *m = model_create("cnn", (struct io_shape){1, 28, 28, 10}, 1,
                                   kernels_get(NULL, PRECISION_FP32, &err), &err);
    ck_ok(m ? 0 : -1, err);
    double first = 26 * 26 * 32 * 9, rest = 24 * 24 * 64 * 288 + 9216 * 128 + 128 * 10;
    ck_assert_double_eq(model_flop(m), 2 * (2 * first + 3 * rest));
    model_destroy(m);
}

LOOP_TEST(models_that_cannot_be_are_refused, ARRAY_LEN(refused))
{
    struct ddp_err err = {""};
    ck_assert_ptr_null(model_create(refused[_i].model, refused[_i].io,
                                    refused[_i].max_batch,
                                    kernels_get(NULL, PRECISION_FP32, &err), &err));
    ck_assert_str_eq(err.text, refused[_i].text);
}
