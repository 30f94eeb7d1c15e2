/* GPT-2 against a second opinion: the same network written once more in double, whose
 * finite differences are the gradients. Every test runs for every engine of the build. */
#define CASE_SECONDS 600
#include "tests/support/suite.h"

#include "common/mem.h"
#include "tests/worker/kernels/engines.h"
#include "worker/kernels/rng.h"
#include "worker/nn/model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* No size is a multiple of a vector's; the second has more tokens than attention takes at
 * a time, and its logits come in pieces. */
static const struct {
    int layers, heads, C, T, V, n;
} cases[] = {{2, 3, 15, 7, 37, 3}, {1, 2, 4, 70, 300000, 1}, {1, 1, 33, 65, 5, 2}};

static double *rows(int n, int C)
{
    return xcalloc((size_t)n * (size_t)C, sizeof(double));
}

/* ---- the network in double; each function takes its parameters from *w on ---- */

static double *norm(const double *x, int n, int C, const double **w)
{
    double *y = rows(n, C);
    for (int i = 0; i < n; i++) {
        double mean = 0, var = 0;
        for (int c = 0; c < C; c++)
            mean += x[i * C + c] / C;
        for (int c = 0; c < C; c++)
            var += pow(x[i * C + c] - mean, 2) / C;
        for (int c = 0; c < C; c++)
            y[i * C + c] =
                (x[i * C + c] - mean) / sqrt(var + 1e-5) * (*w)[c] + (*w)[C + c];
    }
    *w += 2 * C;
    return y;
}

static double *dense(double *x, int n, int C, int K, const double **w)
{
    double *y = rows(n, K);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < K; k++) {
            double sum = (*w)[C * K + k];
            for (int c = 0; c < C; c++)
                sum += x[i * C + c] * (*w)[c * K + k];
            y[i * K + k] = sum;
        }
    *w += C * K + K;
    free(x);
    return y;
}

static double *attend(double *qkv, int T, int C, int heads)
{
    int D = C / heads;
    double *y = rows(T, C), *p = rows(1, T);
    for (int t = 0; t < T; t++)
        for (int h = 0; h < heads; h++) {
            const double *q = qkv + t * 3 * C + h * D;
            double all = 0;
            for (int s = 0; s <= t; s++) {
                double dot = 0;
                for (int d = 0; d < D; d++)
                    dot += q[d] * qkv[s * 3 * C + C + h * D + d];
                all += p[s] = exp(dot / sqrt(D));
            }
            for (int s = 0; s <= t; s++)
                for (int d = 0; d < D; d++)
                    y[t * C + h * D + d] +=
                        p[s] / all * qkv[s * 3 * C + 2 * C + h * D + d];
        }
    free(p);
    free(qkv);
    return y;
}

static double *gelu(double *x, int n)
{
    for (int i = 0; i < n; i++)
        x[i] *= 0.5 * (1 + tanh(sqrt(2 / M_PI) * (x[i] + 0.044715 * pow(x[i], 3))));
    return x;
}

static void add(double *x, double *y, int n)
{
    for (int i = 0; i < n; i++)
        x[i] += y[i];
    free(y);
}

static double loss_double(int which, const struct batch *b, const double *w)
{
    int C = cases[which].C, T = cases[which].T, V = cases[which].V;
    const double *wte = w, *wpe = w + V * C;
    double total = 0;
    for (int s = 0; s < b->n; s++) {
        const uint32_t *tokens = b->tokens + s * (T + 1);
        double *x = rows(T, C);
        w = wpe + T * C;
        for (int i = 0; i < T * C; i++)
            x[i] = wte[(int)tokens[i / C] * C + i % C] + wpe[i];
        for (int l = 0; l < cases[which].layers; l++) {
            double *y = dense(norm(x, T, C, &w), T, C, 3 * C, &w);
            add(x, dense(attend(y, T, C, cases[which].heads), T, C, C, &w), T * C);
            y = gelu(dense(norm(x, T, C, &w), T, C, 4 * C, &w), T * 4 * C);
            add(x, dense(y, T, 4 * C, C, &w), T * C);
        }
        double *y = norm(x, T, C, &w);
        for (int t = 0; t < T; t++) {
            double all = 0, right = 0;
            for (int v = 0; v < V; v++) {
                double logit = 0;
                for (int c = 0; c < C; c++)
                    logit += y[t * C + c] * wte[v * C + c];
                all += exp(logit);
                right = v == (int)tokens[t + 1] ? logit : right;
            }
            total += log(all) - right;
        }
        free(x);
        free(y);
    }
    return total / b->n / T;
}

/* ---- fixtures ---- */

static struct model *a_model(int which, const struct kernels *k, int max_batch)
{
    struct ddp_err err;
    char *name = xasprintf("gpt2:layers=%d,heads=%d,width=%d,context=%d,vocab=%d",
                           cases[which].layers, cases[which].heads, cases[which].C,
                           cases[which].T, cases[which].V);
    struct io_shape io = {1, 1, cases[which].T, cases[which].V};
    struct model *m = model_create(name, io, max_batch, k, &err);
    ck_assert_msg(m != NULL, "%s", err.text);
    free(name);
    model_init(m, 3);
    for (size_t i = 0; i < model_param_count(m); i++) /* no gradient is small */
        model_weights(m)[i] += 0.6f * rng_uniform(8, i) - 0.3f;
    return m;
}

static struct batch a_batch(int which)
{
    size_t count = (size_t)cases[which].n * (size_t)(cases[which].T + 1);
    uint32_t *tokens = xcalloc(count, sizeof *tokens);
    for (size_t i = 0; i < count; i++)
        tokens[i] = (uint32_t)(rng_word(13, i) % (unsigned)cases[which].V);
    return (struct batch){.tokens = tokens, .n = cases[which].n};
}

LOOP_TEST(gradients_are_finite_differences, ARRAY_LEN(cases) * 4)
{
    int which = _i % (int)ARRAY_LEN(cases), engine = _i / (int)ARRAY_LEN(cases), correct;
    if (engine >= nengines() || (engine > 0 && which == 1)) /* which takes long */
        return;
    const struct kernels *k = engine_at(engine);
    kernels_set_threads(1 + engine % 2);
    struct model *m = a_model(which, k, cases[which].n + 2);
    struct batch b = a_batch(which);
    float loss = model_train_step(m, &b, 0.5f, 1, 1, &correct, NULL, NULL);
    size_t n = model_param_count(m), nparams;
    double *w = xcalloc(n, sizeof(double));
    for (size_t i = 0; i < n; i++)
        w[i] = (double)model_weights(m)[i];
    double want = loss_double(which, &b, w);
    ck_assert_msg(fabs((double)loss - want) < 2e-6 * want, "%g, want %g", (double)loss,
                  want);
    ck_assert_double_eq_tol((double)model_evaluate(m, &b, &correct), (double)loss, 1e-5);
    const struct param *params = model_params(m, &nparams);
    for (size_t p = 0; p < nparams; p++)
        for (int probe = 0; probe < (which == 1 ? 1 : 4); probe++) {
            size_t i = params[p].offset + rng_word(p, (uint64_t)probe) % params[p].count;
            if (p == 0 && probe % 2 == 0) /* of a token that is there */
                i = b.tokens[probe] * (size_t)cases[which].C;
            double was = w[i], eps = 1e-5;
            w[i] = was + eps;
            double up = loss_double(which, &b, w);
            w[i] = was - eps;
            want = 0.5 * (up - loss_double(which, &b, w)) / (2 * eps);
            w[i] = was;
            double got = (double)model_grads(m)[i];
            ck_assert_msg(fabs(want - got) < 1e-6 + 2e-4 * fabs(want),
                          "%s %s[%zu]: %g, want %g", k->name, params[p].name,
                          i - params[p].offset, got, want);
        }
    kernels_set_threads(1);
    free(w);
    free((void *)(uintptr_t)b.tokens);
    model_destroy(m);
}

/* Rounding to 8 bits of a mantissa moves gradients by a per cent or two. */
LOOP_TEST(bf16_stays_near, 4)
{
    if (_i >= nengines())
        return;
    struct ddp_err err;
    const struct kernels *k[2] = {
        engine_at(_i), kernels_get_at(kernels_names()[_i], PRECISION_BF16, &err)};
    struct batch b = a_batch(0);
    struct model *m[2];
    float loss[2];
    for (int i = 0; i < 2 && k[1]; i++) {
        int correct;
        m[i] = a_model(0, k[i], cases[0].n);
        loss[i] = model_train_step(m[i], &b, 1, 1, 1, &correct, NULL, NULL);
    }
    double far = 0, all = 0;
    for (size_t i = 0; k[1] && i < model_param_count(m[0]); i++) {
        double want = (double)model_grads(m[0])[i];
        all += want * want;
        far += pow((double)model_grads(m[1])[i] - want, 2);
    }
    if (k[1]) {
        ck_assert_double_eq_tol((double)loss[0], (double)loss[1], 0.02);
        ck_assert_msg(far > 0 && sqrt(far / all) < 0.03, "%g", sqrt(far / all));
        model_destroy(m[0]);
        model_destroy(m[1]);
    }
    free((void *)(uintptr_t)b.tokens);
}

/* What comes next depends on what was before, and on nothing behind it. */
TEST(next_tokens_are_those_of_the_loss)
{
    const struct kernels *k = kernels_get(NULL, NULL);
    struct model *m = a_model(0, k, 1);
    struct batch b = a_batch(0);
    int T = cases[0].T, V = cases[0].V, correct;
    double total = 0;
    for (int n = 1; n <= T; n++) {
        const float *logits = model_next(m, b.tokens, n);
        double all = 0;
        for (int v = 0; v < V; v++)
            all += exp((double)logits[v]);
        total += log(all) - (double)logits[b.tokens[n]];
    }
    b.n = 1;
    ck_assert_double_eq_tol(total / T, (double)model_evaluate(m, &b, &correct), 1e-5);
    free((void *)(uintptr_t)b.tokens);
    model_destroy(m);
}

TEST(a_step_is_the_same_with_any_number_of_threads)
{
    const struct kernels *k = kernels_get(NULL, NULL);
    struct batch b = a_batch(2);
    float *first = NULL;
    for (int threads = 1; threads <= 3; threads++) {
        int correct;
        kernels_set_threads(threads);
        struct model *m = a_model(2, k, cases[2].n);
        model_train_step(m, &b, 1, 1, 1, &correct, NULL, NULL);
        size_t bytes = model_param_count(m) * sizeof(float);
        if (first)
            ck_assert_mem_eq(first, model_grads(m), bytes);
        else
            first = xmemdup(model_grads(m), bytes);
        model_destroy(m);
    }
    kernels_set_threads(1);
    free(first);
    free((void *)(uintptr_t)b.tokens);
}

TEST(what_is_not_a_number_reaches_the_loss)
{
    struct batch b = a_batch(0);
    size_t nparams;
    for (int engine = 0; engine < nengines(); engine++) {
        struct model *m = a_model(0, engine_at(engine), 3);
        const struct param *params = model_params(m, &nparams);
        for (size_t p = 0; p < nparams; p++) {
            int correct, at = p == 0 ? (int)b.tokens[0] * cases[0].C : 0;
            float *w = model_weights(m) + params[p].offset + at, was = *w;
            *w = NAN;
            ck_assert_msg(isnan(model_evaluate(m, &b, &correct)), "%s", params[p].name);
            *w = was;
        }
        model_destroy(m);
    }
    free((void *)(uintptr_t)b.tokens);
}

static const struct {
    const char *name, *text;
} refused[] = {
    {"gpt2:layers", "model gpt2: 'layers' is not layers, heads, width, context or vocab "
                    "with '=' and a number"},
    {"gpt2:layers=2,depth=3",
     "model gpt2: 'depth=3' is not layers, heads, width, context or "
     "vocab with '=' and a number"},
    {"gpt2:heads=5", "model gpt2: a width of 768 cannot be shared by 5 heads"},
    {"gpt3", "unknown model 'gpt3'; there are cnn, linreg, mlp, resnet18, resnet34, "
             "resnet50, toy, gpt2, and files: ./net.model"},
};

LOOP_TEST(wrong_sizes_are_one_line, ARRAY_LEN(refused))
{
    struct ddp_err err;
    ck_assert_ptr_null(model_type_find(refused[_i].name, &err));
    ck_assert_str_eq(err.text, refused[_i].text);
}
