/* Every engine of this machine against the plain one: shapes with tails, batches of one,
 * batches smaller than planned, one thread and three. */
#include "tests/support/suite.h"

#include "common/mem.h"
#include "tests/worker/kernels/engines.h"
#include "tests/worker/kernels/factors.h"
#include "tests/worker/kernels/plain.h"
#include "worker/kernels/pool.h"
#include "worker/kernels/rng.h"
#include "worker/kernels/scratch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct scratches memory; /* of the plans */

/* The engine under test in loop turn i of n cases; NULL when there are fewer engines. */
static const struct kernels *engine(int i, int n)
{
    return i / n < nengines() ? engine_at(i / n) : NULL;
}

/* n numbers in [-1, 1), a tenth of them 0. */
static float *numbers(size_t n, uint64_t seed)
{
    float *v = xcalloc(n + 1, sizeof(float));
    for (size_t i = 0; i < n; i++)
        v[i] = rng_word(seed, i) % 10 ? 2 * rng_uniform(seed, i) - 1 : 0;
    return v;
}

/* Sums of `terms` products differ by what rounding may do to them, and nothing is written
 * behind the end. */
static void check_same(const char *what, const float *got, const float *want, size_t n,
                       int terms)
{
    double tolerance = 2e-7 * (4 + terms);
    for (size_t i = 0; i < n; i++) /* an assertion that passes costs a system call */
        if (!(fabs((double)(got[i] - want[i])) <= tolerance))
            ck_abort_msg("%s[%zu]: %g, want %g", what, i, (double)got[i],
                         (double)want[i]);
    ck_assert_msg(got[n] == 0, "%s: written behind its end", what);
}

static const struct linear_shape linears[] = {
    {1, 1, 1, false},     {2, 5, 1, false},      {1, 784, 51, true},  {64, 784, 64, true},
    {64, 128, 10, false}, {33, 300, 37, true},   {70, 513, 31, true}, {16, 64, 64, false},
    {17, 17, 17, true},   {3, 1000, 129, false}, {801, 33, 34, true},
};

LOOP_TEST(linear_layers_agree, ARRAY_LEN(linears) * MAX_ENGINES)
{
    const struct linear_shape s = linears[_i % (int)ARRAY_LEN(linears)];
    const struct kernels *k[2] = {&kernels_plain, engine(_i, (int)ARRAY_LEN(linears))};
    if (k[1] == NULL)
        return;
    pool_set(_i % 2 ? 3 : 1);
    struct linear_plan *p[2] = {k[0]->linear_plan(s, &memory),
                                k[1]->linear_plan(s, &memory)};
    for (int n = s.B; n > 0; n = n > 1 ? n / 2 : 0) {
        size_t nx = (size_t)(n * s.C), nw = (size_t)(s.K * s.C), ny = (size_t)(n * s.K);
        float *x = numbers(nx, 1), *w = numbers(nw, 2), *bias = numbers((size_t)s.K, 3);
        float *dy = numbers(ny, 4), *y[2], *dw[2], *dbias[2], *dx[2];
        for (int e = 0; e < 2; e++) {
            y[e] = xcalloc(ny + 1, sizeof(float));
            dw[e] = xcalloc(nw + 1, sizeof(float));
            dbias[e] = xcalloc((size_t)s.K + 1, sizeof(float));
            dx[e] = xcalloc(nx + 1, sizeof(float));
            k[e]->linear(p[e], n, x, w, bias, y[e]);
            /* the same y for both: a sum of about 0 may fall on either side */
            k[e]->linear_back(p[e], n, x, w, y[0], dy, dw[e], NULL, dbias[e], dx[e]);
        }
        check_same("y", y[1], y[0], ny, s.C);
        check_same("dw", dw[1], dw[0], nw, n);
        check_same("dbias", dbias[1], dbias[0], (size_t)s.K, n);
        check_same("dx", dx[1], dx[0], nx, s.K);
        memset(dw[1], 0, nw * sizeof(float));
        k[1]->linear_back(p[1], n, x, w, y[0], dy, dw[1], NULL, dbias[1], NULL);
        check_same("dw without dx", dw[1], dw[0], nw, n);
        for (int e = _i < (int)ARRAY_LEN(linears) ? 0 : 1; e < 2; e++) /* plain once */
            check_factors(k[e], p[e], s, n, x, w, y[0], dy);
        for (int e = 0; e < 2; e++) {
            free(y[e]);
            free(dw[e]);
            free(dbias[e]);
            free(dx[e]);
        }
        free(x);
        free(w);
        free(bias);
        free(dy);
    }
    scratches_free(&memory);
    pool_set(1);
}

/* A chain of two convolutions, since images between them lie as each engine likes. */
static const struct {
    int B, C, H, W, K1, R1;
    bool pool1;
    int K2, R2;
    bool pool2;
} convs[] = {
    {3, 1, 28, 28, 32, 3, false, 64, 3, true}, {1, 1, 8, 8, 32, 3, false, 64, 3, true},
    {5, 3, 9, 11, 5, 3, false, 7, 3, true},    {2, 2, 12, 10, 33, 5, true, 65, 1, false},
    {4, 1, 7, 7, 16, 3, true, 16, 2, true},    {2, 1, 6, 33, 8, 1, false, 3, 4, false},
    {1, 1, 4, 4, 1, 2, false, 1, 3, false},    {20, 3, 9, 11, 5, 3, false, 7, 3, true},
};

struct chain {
    const struct kernels *k;
    struct conv_plan *one, *two;
    size_t middle, out; /* floats per image */
    float *y1, *y2, *dx1, *dw[2], *dbias[2];
};

static struct chain a_chain(const struct kernels *k, int i, size_t nw1, size_t nw2)
{
    int shrink = convs[i].pool1 ? 2 : 1;
    struct conv_shape one = {.B = convs[i].B,
                             .C = convs[i].C,
                             .H = convs[i].H,
                             .W = convs[i].W,
                             .K = convs[i].K1,
                             .R = convs[i].R1,
                             .pool = convs[i].pool1,
                             .first = true};
    struct conv_shape two = {.B = convs[i].B,
                             .C = convs[i].K1,
                             .H = (one.H - one.R + 1) / shrink,
                             .W = (one.W - one.R + 1) / shrink,
                             .K = convs[i].K2,
                             .R = convs[i].R2,
                             .pool = convs[i].pool2,
                             .last = true};
    struct chain c = {
        .k = k, .one = k->conv_plan(one, &memory), .two = k->conv_plan(two, &memory)};
    c.middle = k->conv_floats(c.one);
    c.out = k->conv_floats(c.two);
    size_t B = (size_t)convs[i].B;
    c.y1 = xcalloc(c.middle * B + 1, sizeof(float));
    c.dx1 = xcalloc(c.middle * B + 1, sizeof(float));
    c.y2 = xcalloc(c.out * B + 1, sizeof(float));
    c.dw[0] = xcalloc(nw1 + 1, sizeof(float));
    c.dw[1] = xcalloc(nw2 + 1, sizeof(float));
    c.dbias[0] = xcalloc((size_t)convs[i].K1 + 1, sizeof(float));
    c.dbias[1] = xcalloc((size_t)convs[i].K2 + 1, sizeof(float));
    return c;
}

static void free_chain(struct chain *c)
{
    free(c->y1);
    free(c->dx1);
    free(c->y2);
    for (int i = 0; i < 2; i++) {
        free(c->dw[i]);
        free(c->dbias[i]);
    }
}

LOOP_TEST(convolutions_agree, ARRAY_LEN(convs) * MAX_ENGINES)
{
    int i = _i % (int)ARRAY_LEN(convs), B = convs[i].B;
    const struct kernels *k = engine(_i, (int)ARRAY_LEN(convs));
    if (k == NULL)
        return;
    int taps1 = convs[i].C * convs[i].R1 * convs[i].R1;
    int taps2 = convs[i].K1 * convs[i].R2 * convs[i].R2;
    size_t nx = (size_t)(B * convs[i].C * convs[i].H * convs[i].W);
    size_t nw1 = (size_t)(taps1 * convs[i].K1), nw2 = (size_t)(taps2 * convs[i].K2);
    pool_set(_i % 2 ? 3 : 1);
    struct chain c[2] = {a_chain(&kernels_plain, i, nw1, nw2), a_chain(k, i, nw1, nw2)};
    ck_assert_uint_eq(c[0].out, c[1].out);
    size_t ny = c[0].out * (size_t)B;
    float *x = numbers(nx, 1), *w1 = numbers(nw1, 2), *w2 = numbers(nw2, 3);
    float *bias = numbers(128, 4), *dy = numbers(ny, 5);
    for (int n = B; n > 0; n -= 2)
        for (int e = 0; e < 2; e++) {
            memset(c[e].y2, 0, ny * sizeof(float));
            c[e].k->conv(c[e].one, n, x, w1, bias, c[e].y1);
            c[e].k->conv(c[e].two, n, c[e].y1, w2, bias, c[e].y2);
            if (e == 1)
                check_same("y", c[1].y2, c[0].y2, c[0].out * (size_t)n, 3 * taps2);
            c[e].k->conv_back(c[e].two, n, c[e].y1, w2, c[0].y2, dy, c[e].dw[1],
                              c[e].dbias[1], c[e].dx1);
            c[e].k->conv_back(c[e].one, n, x, w1, c[e].y1, c[e].dx1, c[e].dw[0],
                              c[e].dbias[0], NULL);
            if (e == 0)
                continue;
            int positions = n * convs[i].H * convs[i].W;
            check_same("dw2", c[1].dw[1], c[0].dw[1], nw2, 2 * positions);
            check_same("dbias2", c[1].dbias[1], c[0].dbias[1], (size_t)convs[i].K2,
                       positions);
            check_same("dw1", c[1].dw[0], c[0].dw[0], nw1, 8 * positions);
            check_same("dbias1", c[1].dbias[0], c[0].dbias[0], (size_t)convs[i].K1,
                       8 * positions);
        }
    for (int e = 0; e < 2; e++)
        free_chain(&c[e]);
    scratches_free(&memory);
    free(x);
    free(w1);
    free(w2);
    free(bias);
    free(dy);
    pool_set(1);
}

static const int64_t lengths[] = {1, 15, 63, 64, 65, 1000, 4095, 4097, 70001};

LOOP_TEST(dropout_draws_the_same_mask_everywhere, ARRAY_LEN(lengths) * MAX_ENGINES)
{
    int64_t n = lengths[_i % (int)ARRAY_LEN(lengths)], kept = 0;
    const struct kernels *k = engine(_i, (int)ARRAY_LEN(lengths));
    if (k == NULL)
        return;
    pool_set(_i % 2 ? 3 : 1);
    float *a = xcalloc((size_t)n, sizeof(float)), *b = xcalloc((size_t)n, sizeof(float));
    for (int64_t i = 0; i < n; i++)
        a[i] = b[i] = 3;
    kernels_plain.dropout(a, n, 0.25f, 7);
    k->dropout(b, n, 0.25f, 7);
    ck_assert_mem_eq(a, b, (size_t)n * sizeof(float));
    for (int64_t i = 0; i < n; i++) {
        if (a[i] != 0 && a[i] != 4)
            ck_abort_msg("%g", (double)a[i]);
        kept += a[i] != 0;
    }
    if (n >= 1000) /* four standard deviations */
        ck_assert_double_le(fabs((double)kept / (double)n - 0.75),
                            4 * sqrt(0.1875 / (double)n));
    k->dropout(b, n, 0.25f, 8);
    ck_assert(n < 64 || memcmp(a, b, (size_t)n * sizeof(float)) != 0);
    free(a);
    free(b);
    pool_set(1);
}

LOOP_TEST(arrays_are_added_scaled_and_looked_at_alike, ARRAY_LEN(lengths) * MAX_ENGINES)
{
    size_t n = (size_t)lengths[_i % (int)ARRAY_LEN(lengths)];
    const struct kernels *k = engine(_i, (int)ARRAY_LEN(lengths));
    if (k == NULL)
        return;
    pool_set(_i % 2 ? 3 : 1);
    float *from = numbers(n, 1), *to = numbers(n, 2), *want = numbers(n, 2);
    double squares = 0;
    for (size_t i = 0; i < n; i++) {
        want[i] = (want[i] + from[i]) * 0.75f;
        squares += (double)want[i] * (double)want[i];
    }
    k->add(to, from, (int64_t)n);
    k->scale(to, (int64_t)n, 0.75f);
    check_same("scaled sum", to, want, n, 1);
    ck_assert_double_eq_tol(k->sum_squares(to, (int64_t)n), squares, 1e-5 * squares);
    ck_assert(k->finite(to, n, false));
    to[n - 1] = NAN;
    ck_assert(!k->finite(to, n, false));
    free(from);
    free(to);
    free(want);
    pool_set(1);
}

LOOP_TEST(losses_are_what_one_computes_by_hand, MAX_ENGINES)
{
    const struct kernels *k = engine_at(_i);
    static const float logits[] = {0, 0, 0, 100, -100, 0};
    static const struct {
        float smooth;
        double losses[2], gradient[6];
    } cases[] = {
        {0, {1.0986123, 200}, {1 / 3.0, 1 / 3.0, -2 / 3.0, 1, -1, 0}},
        /* torch.nn.CrossEntropyLoss(label_smoothing=0.3) */
        {0.3f, {1.0986123, 170}, {7 / 30.0, 7 / 30.0, -14 / 30.0, 0.9, -0.8, -0.1}}};
    for (size_t c = 0; k && c < ARRAY_LEN(cases); c++)
        for (int scale = 0; scale < 2; scale++) {
            float got[6];
            double found[4];
            memcpy(got, logits, sizeof got);
            k->class_loss(2, 3, got, (uint32_t[]){2, 1}, cases[c].smooth, (float)scale,
                          found);
            for (int i = 0; i < 2; i++)
                ck_assert_double_eq_tol(found[2 * i], cases[c].losses[i], 1e-5);
            ck_assert(found[1] == 0 && found[3] == 0);
            for (int i = 0; i < 6; i++)
                ck_assert_double_eq_tol((double)got[i],
                                        scale ? cases[c].gradient[i] : (double)logits[i],
                                        1e-6);
        }
}

/* As torch.argmax(): a model whose logits are all the same has not learnt every label. */
LOOP_TEST(the_first_of_the_most_likely_is_taken, MAX_ENGINES)
{
    const struct kernels *k = engine_at(_i);
    float logits[] = {2, 1, 2, 2, 1, 2, 2, 1, 2};
    double found[6];
    if (k)
        k->class_loss(3, 3, logits, (uint32_t[]){0, 1, 2}, 0, 1, found);
    ck_assert(!k || (found[1] == 1 && found[3] == 0 && found[5] == 0));
}

/* A sum of 1 and of what is less than its rounding error. */
LOOP_TEST(a_loss_that_is_nearly_none_is_right, MAX_ENGINES)
{
    const struct kernels *k = engine_at(_i);
    enum { V = 19 };
    float logits[2 * V] = {[3] = 20, [V] = 30, [V + 18] = 10};
    double found[4], want[] = {log1p(18 * exp(-20)), log1p(exp(-20) + 17 * exp(-30))};
    if (k)
        k->class_loss(2, V, logits, (uint32_t[]){3, 0}, 0, 0, found);
    for (int i = 0; k && i < 2; i++)
        ck_assert_double_eq_tol(found[2 * i], want[i], 1e-6 * want[i]);
}

/* Against the formula in double: rows of any length. */
LOOP_TEST(losses_of_classes_are_right, MAX_ENGINES)
{
    enum { N = 5, V = 37 };
    const struct kernels *k = engine_at(_i);
    for (int smooth = 0; smooth < 2 && k; smooth++) {
        float by = smooth ? 0.1f : 0, logits[N * V], given[N * V];
        uint32_t labels[N];
        double found[2 * N];
        for (int i = 0; i < N * V; i++)
            given[i] = logits[i] = 4 * rng_uniform(7, (uint64_t)i);
        for (uint32_t i = 0; i < N; i++)
            labels[i] = i * 9;
        k->class_loss(N, V, logits, labels, by, 3, found);
        for (int i = 0; i < N; i++) {
            const float *l = given + i * V;
            double all = 0, loss = 0, most = 0;
            for (int v = 0; v < V; v++) {
                all += exp((double)l[v]);
                most = fmax(most, (double)l[v]);
            }
            for (int v = 0; v < V; v++) {
                double p = exp((double)l[v]) / all;
                double want = (double)by / V + (v == (int)labels[i] ? 1 - (double)by : 0);
                loss -= want * log(p);
                ck_assert_double_eq_tol((double)logits[i * V + v], 3 * (p - want), 1e-5);
            }
            ck_assert_double_eq_tol(found[2 * i], loss, 1e-5);
            ck_assert(found[2 * i + 1] == ((double)l[labels[i]] == most));
        }
    }
}

/* Parameters after 1, 2 and 3 steps of torch.optim (2.15) from w = {1, -2, 0.5} with
 * gradients {0.1, -1, 3} * step number; torch_runs.py compares whole runs when
 * PyTorch is there. */
static const struct {
    const char *name;
    double want[3][3];
} optimisers[] = {
    {"sgd", {{0.99, -1.9, 0.2}, {0.97, -1.7, -0.4}, {0.94, -1.4, -1.3}}},
    {"sgd momentum 0.9 decay 0.1",
     {{0.98, -1.88, 0.195},
      {0.9322, -1.5532, -0.68145},
      {0.849858, -0.943548, -2.3634405}}},
    {"adam",
     {{0.990000001, -1.99, 0.49},
      {0.980348181, -1.98034818, 0.48034818},
      {0.97076817, -1.97076817, 0.470768168}}},
    {"adam decay 0.1",
     {{0.990000001, -1.99, 0.49},
      {0.980089705, -1.98025871, 0.480339257},
      {0.970214207, -1.9705869, 0.47075046}}},
    {"adadelta",
     {{0.996839302, -1.99683774, 0.496837724},
      {0.992800114, -1.99279714, 0.492797115},
      {0.987932509, -1.98792796, 0.48792792}}},
    {"adadelta decay 0.1",
     {{0.996838118, -1.99683773, 0.496837724},
      {0.993059999, -1.99286599, 0.492803299},
      {0.988649227, -1.98811315, 0.48794447}}},
};

LOOP_TEST(optimisers_step_as_pytorchs_do, ARRAY_LEN(optimisers) * MAX_ENGINES)
{
    int which = _i % (int)ARRAY_LEN(optimisers);
    const struct kernels *k = engine(_i, (int)ARRAY_LEN(optimisers));
    if (k == NULL)
        return;
    float w[3] = {1, -2, 0.5f}, a[3] = {0}, b[3] = {0}, decay = which % 2 ? 0.1f : 0;
    for (int step = 1; step <= 3; step++) {
        float g[3] = {0.1f * (float)step, -1.0f * (float)step, 3.0f * (float)step};
        k->update((struct update){.rule = which / 2,
                                  .w = w,
                                  .m = which > 0 ? a : NULL,
                                  .v = b,
                                  .g = g,
                                  .n = 3,
                                  .lr = which < 2   ? 0.1f
                                        : which < 4 ? 0.01f
                                                    : 1,
                                  .decay = decay,
                                  .b1 = 0.9f,
                                  .b2 = 0.999f,
                                  .eps = which < 4 ? 1e-8f : 1e-6f,
                                  .keep = 1,
                                  .step = step});
        for (int i = 0; i < 3; i++)
            ck_assert_msg(fabs((double)w[i] - optimisers[which].want[step - 1][i]) < 2e-6,
                          "%s, step %d: %.9g, want %.9g", optimisers[which].name, step,
                          (double)w[i], optimisers[which].want[step - 1][i]);
    }
}

LOOP_TEST(optimisers_agree_on_long_blocks, MAX_ENGINES)
{
    const struct kernels *k = engine(_i, 1);
    if (k == NULL)
        return;
    pool_set(3);
    enum { N = 50003 };
    for (int which = 0; which < 3; which++) {
        float *w[2], *a[2], *b[2];
        for (int e = 0; e < 2; e++) {
            w[e] = numbers(N, 1);
            a[e] = xcalloc(N + 1, sizeof(float));
            b[e] = xcalloc(N + 1, sizeof(float));
            for (int step = 1; step <= 3; step++) {
                float *g = numbers(N, (uint64_t)step);
                const struct kernels *it = e ? k : &kernels_plain;
                it->update((struct update){.rule = which,
                                           .w = w[e],
                                           .m = a[e],
                                           .v = b[e],
                                           .g = g,
                                           .n = N,
                                           .lr = which == RULE_SGD    ? 0.1f
                                                 : which == RULE_ADAM ? 0.01f
                                                                      : 1,
                                           .decay = 0.01f,
                                           .b1 = 0.9f,
                                           .b2 = 0.999f,
                                           .eps = which == RULE_ADAM ? 1e-8f : 1e-6f,
                                           .keep = 0.99f,
                                           .step = step});
                free(g);
            }
        }
        check_same("w", w[1], w[0], N, 10);
        for (int e = 0; e < 2; e++) {
            free(w[e]);
            free(a[e]);
            free(b[e]);
        }
    }
    pool_set(1);
}

TEST(engines_go_by_name)
{
    struct ddp_err err = {""};
    ck_assert_str_eq(kernels_get("simd", PRECISION_FP32, &err)->name, "simd");
    ck_assert_str_eq(kernels_get(NULL, PRECISION_FP32, &err)->name, engine_at(0)->name);
    ck_assert_ptr_null(kernels_get("abacus", PRECISION_FP32, &err));
    ck_assert_ptr_nonnull(
        strstr(err.text, "unknown kernels 'abacus'; this machine has: "));
    ck_assert_ptr_nonnull(strstr(err.text, "simd"));
}
