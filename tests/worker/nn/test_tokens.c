/* GPT-2 and LLaMA against a second opinion: the same networks written once more in
 * double, whose finite differences are the gradients. Every test runs for every engine of
 * the build.
 */
#define CASE_SECONDS 600
#include "tests/support/suite.h"

#include "common/mem.h"
#include "tests/worker/kernels/engines.h"
#include "tests/worker/nn/train_step.h"
#include "worker/kernels/pool.h"
#include "worker/kernels/rng.h"
#include "worker/nn/model.h"

#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* No size is a multiple of a vector's; the second has more tokens than attention takes at
 * a time, and its logits come in pieces (LOGITS_AT_ONCE of this program). `kv`: heads of
 * keys and values, of LLaMA; `original`: the positions for which its rotary frequencies
 * are scaled. */
static const struct {
    int layers, heads, C, T, V, n, kv, hidden, untied, original;
} cases[] = {{2, 3, 15, 7, 37, 3, 0, 0, 0},    {1, 2, 4, 70, 50257, 1, 0, 0, 0},
             {1, 1, 33, 65, 50, 2, 0, 0, 0},   {2, 6, 36, 7, 37, 3, 2, 17, 1},
             {1, 3, 6, 70, 50257, 1, 1, 5, 1}, {1, 2, 68, 65, 5, 2, 2, 33, 0, 40}};
enum { CASES = ARRAY_LEN(cases), GPT2 = 0, LARGE = 1, LLAMA = 3, LARGE_LLAMA = 4 };

static double *rows(int n, int C)
{
    return xcalloc((size_t)n * (size_t)C, sizeof(double));
}

/* ---- the network in double; each function takes its parameters from *w on ---- */

/* It is no code of ours that a sanitizer should look at, and its loops are most of the
 * time. */
#define REFERENCE __attribute__((no_sanitize("address", "undefined")))

static REFERENCE double *norm(const double *x, int n, int C, bool rms, const double **w)
{
    double *y = rows(n, C);
    for (int i = 0; i < n; i++) {
        double mean = 0, var = 0;
        for (int c = 0; c < C && !rms; c++)
            mean += x[i * C + c] / C;
        for (int c = 0; c < C; c++)
            var += pow(x[i * C + c] - mean, 2) / C;
        for (int c = 0; c < C; c++)
            y[i * C + c] = (x[i * C + c] - mean) / sqrt(var + 1e-5) * (*w)[c] +
                           (rms ? 0 : (*w)[C + c]);
    }
    *w += rms ? C : 2 * C;
    return y;
}

/* GPT-2's, or LLaMA's, whose weight is the other way round and without a bias. */
static REFERENCE double *dense(double *x, int n, int C, int K, bool llama,
                               const double **w)
{
    double *y = rows(n, K);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < K; k++) {
            double sum = llama ? 0 : (*w)[C * K + k];
            for (int c = 0; c < C; c++)
                sum += x[i * C + c] * (*w)[llama ? k * C + c : c * K + k];
            y[i * K + k] = sum;
        }
    *w += llama ? C * K : C * K + K;
    free(x);
    return y;
}

/* As Hugging Face scales it by 8 with low_freq_factor 1 and high_freq_factor 4. */
static REFERENCE double scaled(double frequency, double original)
{
    double wavelength = 2 * M_PI / frequency,
           smooth = (original / wavelength - 1) / (4 - 1);
    return original == 0 || wavelength < original / 4 ? frequency
           : wavelength > original / 1
               ? frequency / 8
               : (1 - smooth) * frequency / 8 + smooth * frequency;
}

static REFERENCE double *rotate(double *qkv, int T, int D, int turned, int all,
                                int original)
{
    for (int i = 0; i < T * all; i++)
        for (int d = 0; d < D / 2 && i % all < turned; d++) {
            double *u = qkv + i * D + d, *v = u + D / 2, was = *u;
            double angle = i / all * scaled(pow(10000, -2.0 * d / D), original);
            *u = was * cos(angle) - *v * sin(angle);
            *v = *v * cos(angle) + was * sin(angle);
        }
    return qkv;
}

static REFERENCE double *attend(double *qkv, int T, int C, int heads, int kv)
{
    int D = C / heads, ld = C + 2 * kv * D;
    double *y = rows(T, C), *p = rows(1, T);
    for (int t = 0; t < T; t++)
        for (int h = 0; h < heads; h++) {
            const double *q = qkv + t * ld + h * D, *k = qkv + C + h / (heads / kv) * D;
            double all = 0;
            for (int s = 0; s <= t; s++) {
                double dot = 0;
                for (int d = 0; d < D; d++)
                    dot += q[d] * k[s * ld + d];
                all += p[s] = exp(dot / sqrt(D));
            }
            for (int s = 0; s <= t; s++)
                for (int d = 0; d < D; d++)
                    y[t * C + h * D + d] += p[s] / all * k[s * ld + kv * D + d];
        }
    free(p);
    free(qkv);
    return y;
}

static REFERENCE double *gelu(double *x, int n)
{
    for (int i = 0; i < n; i++)
        x[i] *= 0.5 * (1 + tanh(sqrt(2 / M_PI) * (x[i] + 0.044715 * pow(x[i], 3))));
    return x;
}

static REFERENCE double *gated_silu(double *x, int n, int C)
{
    double *y = rows(n, C);
    for (int i = 0; i < n; i++)
        for (int c = 0; c < C; c++) {
            double gate = x[2 * i * C + c];
            y[i * C + c] = gate / (1 + exp(-gate)) * x[2 * i * C + C + c];
        }
    free(x);
    return y;
}

static void add(double *x, double *y, int n)
{
    for (int i = 0; i < n; i++)
        x[i] += y[i];
    free(y);
}

static void gpt2_block(int which, double *x, const double **w)
{
    int C = cases[which].C, T = cases[which].T, heads = cases[which].heads;
    double *y = dense(norm(x, T, C, false, w), T, C, 3 * C, false, w);
    add(x, dense(attend(y, T, C, heads, heads), T, C, C, false, w), T * C);
    y = gelu(dense(norm(x, T, C, false, w), T, C, 4 * C, false, w), T * 4 * C);
    add(x, dense(y, T, 4 * C, C, false, w), T * C);
}

static void llama_block(int which, double *x, const double **w)
{
    int C = cases[which].C, T = cases[which].T, heads = cases[which].heads;
    int kv = cases[which].kv, D = C / heads, F = cases[which].hidden;
    double *y = dense(norm(x, T, C, true, w), T, C, C + 2 * kv * D, true, w);
    y = attend(rotate(y, T, D, heads + kv, heads + 2 * kv, cases[which].original), T, C,
               heads, kv);
    add(x, dense(y, T, C, C, true, w), T * C);
    y = gated_silu(dense(norm(x, T, C, true, w), T, C, 2 * F, true, w), T, F);
    add(x, dense(y, T, F, C, true, w), T * C);
}

static REFERENCE double loss_double(int which, const struct batch *b, const double *w)
{
    int C = cases[which].C, T = cases[which].T, V = cases[which].V;
    bool llama = cases[which].kv > 0;
    const double *wte = w, *wpe = w + V * C;
    double total = 0;
    for (int s = 0; s < b->n; s++) {
        const uint32_t *tokens = b->tokens + s * (T + 1);
        double *x = rows(T, C);
        w = llama ? wpe : wpe + T * C;
        for (int i = 0; i < T * C; i++)
            x[i] = wte[(int)tokens[i / C] * C + i % C] + (llama ? 0 : wpe[i]);
        for (int l = 0; l < cases[which].layers; l++)
            (llama ? llama_block : gpt2_block)(which, x, &w);
        double *y = norm(x, T, C, llama, &w);
        const double *head = cases[which].untied ? w : wte;
        for (int t = 0; t < T; t++) {
            double all = 0, right = 0;
            for (int v = 0; v < V; v++) {
                double logit = 0;
                for (int c = 0; c < C; c++)
                    logit += y[t * C + c] * head[v * C + c];
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
    char llama[80];
    snprintf(llama, sizeof llama,
             ",kv_heads=%d,hidden=%d,untied=%d,factor=%d,original=%d", cases[which].kv,
             cases[which].hidden, cases[which].untied, cases[which].original ? 8 : 1,
             cases[which].original);
    char *name = xasprintf("%s:layers=%d,heads=%d,width=%d,context=%d,vocab=%d%s",
                           cases[which].kv ? "llama" : "gpt2", cases[which].layers,
                           cases[which].heads, cases[which].C, cases[which].T,
                           cases[which].V, cases[which].kv ? llama : "");
    struct io_shape io = {1, 1, cases[which].T, cases[which].V};
    struct model *m = model_create(name, io, max_batch, k, &err);
    ck_assert_msg(m != NULL, "%s", err.text);
    free(name);
    model_init(m, 3);
    for (size_t i = 0; i < m->count; i++) /* no gradient is small */
        m->weights[i] += 0.6f * rng_uniform(8, i) - 0.3f;
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

LOOP_TEST(gradients_are_finite_differences, CASES * 4)
{
    int which = _i % CASES, engine = _i / CASES, correct;
    bool large = which == LARGE || which == LARGE_LLAMA;
    if (engine >= nengines() || (engine > 0 && large)) /* which takes long */
        return;
    const struct kernels *k = engine_at(engine);
    pool_set(1 + engine % 2);
    struct model *m = a_model(which, k, cases[which].n + 2);
    struct batch b = a_batch(which);
    float loss = train_step(
        m, (struct model_pass){.batch = &b, .scale = 0.5f, .seed = 1, .draw = 1});
    size_t n = m->count;
    double *w = xcalloc(n, sizeof(double));
    for (size_t i = 0; i < n; i++)
        w[i] = (double)m->weights[i];
    double want = loss_double(which, &b, w);
    ck_assert_msg(fabs((double)loss - want) < 2e-6 * want, "%g, want %g", (double)loss,
                  want);
    ck_assert_double_eq_tol((double)model_evaluate(m, &b, &correct), (double)loss, 1e-5);
    const struct param *params = m->params;
    size_t nparams = m->nparams;
    for (size_t p = 0; p < nparams; p++)
        for (int probe = 0; probe < (large ? 1 : 4); probe++) {
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
    pool_set(1);
    free(w);
    free((void *)(uintptr_t)b.tokens);
    model_destroy(m);
}

/* Rounding to 8 bits of a mantissa moves gradients by a per cent or two. */
LOOP_TEST(bf16_stays_near, 8)
{
    int which = _i % 2 ? LLAMA : GPT2;
    if (_i / 2 >= nengines())
        return;
    struct ddp_err err;
    const struct kernels *k[2] = {engine_at(_i / 2)};
    if (k[0])
        k[1] = kernels_get(k[0]->name, PRECISION_BF16, &err);
    struct batch b = a_batch(which);
    struct model *m[2];
    float loss[2];
    for (int i = 0; i < 2 && k[1]; i++) {
        m[i] = a_model(which, k[i], cases[which].n);
        loss[i] = train_step(
            m[i], (struct model_pass){.batch = &b, .scale = 1, .seed = 1, .draw = 1});
    }
    double far = 0, all = 0;
    for (size_t i = 0; k[1] && i < m[0]->count; i++) {
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
LOOP_TEST(next_tokens_are_those_of_the_loss, 2)
{
    int which = _i ? LLAMA : GPT2;
    const struct kernels *k = kernels_get(NULL, PRECISION_FP32, NULL);
    struct model *m = a_model(which, k, 1);
    struct batch b = a_batch(which);
    int T = cases[which].T, V = cases[which].V, correct;
    double total = 0;
    for (int n = 1; n <= T; n++) {
        int known = n % 3 ? n - 1 : 0; /* also two anew, and then on */
        const float *logits = model_next(m, b.tokens, known, n);
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

LOOP_TEST(a_step_is_the_same_with_any_number_of_threads, 2)
{
    int which = _i ? LLAMA : LARGE + 1;
    const struct kernels *k = kernels_get(NULL, PRECISION_FP32, NULL);
    struct batch b = a_batch(which);
    float *first = NULL;
    for (int threads = 1; threads <= 3; threads++) {
        pool_set(threads);
        struct model *m = a_model(which, k, cases[which].n);
        train_step(m, (struct model_pass){.batch = &b, .scale = 1, .seed = 1, .draw = 1});
        size_t bytes = m->count * sizeof(float);
        if (first)
            ck_assert_mem_eq(first, model_grads(m), bytes);
        else
            first = xmemdup(model_grads(m), bytes);
        model_destroy(m);
    }
    pool_set(1);
    free(first);
    free((void *)(uintptr_t)b.tokens);
}

/* The trainer has them in shared memory. */
TEST(gradients_that_are_elsewhere_take_no_memory_of_the_models)
{
    struct ddp_err err;
    struct mallinfo2 before = mallinfo2();
    struct model *m = model_create("gpt2:layers=1,heads=1,width=64,context=8",
                                   (struct io_shape){1, 1, 8, 50257}, 1,
                                   kernels_get(NULL, PRECISION_FP32, NULL), &err);
    struct mallinfo2 after = mallinfo2();
    if (before.uordblks > 0) /* a sanitizer's malloc does not count */
        ck_assert_uint_lt(after.uordblks + after.hblkhd - before.uordblks - before.hblkhd,
                          m->count * sizeof(float) * 3 / 2);
    model_destroy(m);
}

LOOP_TEST(what_is_not_a_number_reaches_the_loss, 2)
{
    int which = _i ? LLAMA : GPT2;
    struct batch b = a_batch(which);
    for (int engine = 0; engine < nengines(); engine++) {
        struct model *m = a_model(which, engine_at(engine), 3);
        const struct param *params = m->params;
        size_t nparams = m->nparams;
        for (size_t p = 0; p < nparams; p++) {
            int correct, at = p == 0 ? (int)b.tokens[0] * cases[which].C : 0;
            float *w = m->weights + params[p].offset + at, was = *w;
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
    {"gpt2:layers", "model 'gpt2:layers': 'layers' is not NAME=VALUE"},
    {"gpt2:layers=2,depth=3",
     "model 'gpt2:layers=2,depth=3' has no size 'depth'; there are "
     "layers heads width context vocab dropout"},
    {"gpt2:layers=x",
     "gpt2.model:16: repeat takes a whole number from 0 to 1000, not 'x'"},
    {"gpt3:layers=2", "unknown model 'gpt3'; there are cnn, gpt2, linreg, llama, mlp, "
                      "resnet18, resnet34, resnet50, toy, and files: ./net.model"},
};

LOOP_TEST(wrong_sizes_are_one_line, ARRAY_LEN(refused))
{
    struct ddp_err err;
    ck_assert_ptr_null(model_type_find(refused[_i].name, &err));
    ck_assert_str_eq(err.text, refused[_i].text);
}
