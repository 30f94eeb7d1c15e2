/* worker/cuda/autotune.c - see autotune.h */
#include "worker/cuda/autotune.h"

#include "common/duration.h"
#include "common/mem.h"
#include "worker/cuda/layers_impl.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Each graph runs the product this many times; the fastest of this many rounds counts. */
enum { PLAYS = 4, ROUNDS = 4, MOST_CANDIDATES = 14 };
/* A candidate this many times slower than the best so far is given up. */
static const double hopeless = 1.5;
/* Smaller gains are within the error of the measurement. */
static const double faster = 0.98;

static const char *const what = "measuring products";

/* Largest relative error (root mean square) between two correct results. TF32 in place
 * of fp32 would give 3e-4. */
static const double apart[] = {[PRECISION_FP32] = 1e-4,
                               [PRECISION_TF32] = 2e-3,
                               [PRECISION_BF16] = 1e-2,
                               [PRECISION_FP16] = 2e-3};

/* A product whose algorithms are being measured. */
struct trial {
    struct tuner *t;
    struct layers *net;
    const struct site *at;
    struct operands on;
    void *expected; /* result of the default algorithm */
    cudaEvent_t began, ended;
};

/* ---- one algorithm ---- */

static int play(const struct trial *x, const struct algorithm *how, struct ddp_err *err)
{
    const struct site *at = x->at;
    return at->of->play(x->net, at->layer, at->plan, at->pass, how, err);
}

/* Runs on the same inputs each time. The output is overwritten first, so that the
 * result of the previous algorithm is not taken for that of one that writes nothing;
 * so is net->dw, which is converted into it. */
static int play_once(const struct trial *x, const struct algorithm *how,
                     struct ddp_err *err)
{
    struct layers *net = x->net;
    cuda_scatter(x->on.out.at, (int64_t)x->on.out.n, x->on.out.type, 3, net->stream);
    if (net->dw && x->at->pass == PASS_WEIGHTS && is_conv(&net->layers[x->at->layer]))
        TRY(check_cuda(cudaMemsetAsync(net->dw, 0xff, x->on.out.n * type_size(net->type),
                                       net->stream),
                       what, err));
    TRY(play(x, how, err));
    TRY(check_launches(what, err));
    return check_cuda(cudaStreamSynchronize(net->stream), what, err);
}

static int record(const struct trial *x, const struct algorithm *how,
                  cudaGraphExec_t *exec, struct ddp_err *err)
{
    cudaGraph_t graph = NULL;
    cudaStream_t stream = x->net->stream;
    int rc = 0;
    *exec = NULL;
    TRY(check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), what,
                   err));
    for (int i = 0; i < PLAYS && rc == 0; i++)
        rc = play(x, how, err);
    cudaError_t end = cudaStreamEndCapture(stream, &graph);
    if (rc == 0)
        rc = check_cuda(end, what, err);
    if (rc == 0)
        rc = check_cuda(cudaGraphInstantiate(exec, graph, 0), what, err);
    if (graph)
        cudaGraphDestroy(graph);
    return rc;
}

/* Times a launch that follows one that is not timed, so that the host submits it while
 * the device is busy. */
static int time_round(const struct trial *x, cudaGraphExec_t exec, double *us,
                      struct ddp_err *err)
{
    float ms = 0;
    cudaStream_t stream = x->net->stream;
    TRY(check_cuda(cudaGraphLaunch(exec, stream), what, err));
    TRY(check_cuda(cudaEventRecord(x->began, stream), what, err));
    TRY(check_cuda(cudaGraphLaunch(exec, stream), what, err));
    TRY(check_cuda(cudaEventRecord(x->ended, stream), what, err));
    TRY(check_cuda(cudaStreamSynchronize(stream), what, err));
    TRY(check_cuda(cudaEventElapsedTime(&ms, x->began, x->ended), what, err));
    *us = (double)ms * 1000 / PLAYS;
    return 0;
}

/* Microseconds of one run: the minimum over the rounds, of which the first is a
 * warm-up. For a candidate that is far slower than `best`, the first round's time. */
static int time_plays(const struct trial *x, const struct algorithm *how, double best,
                      double *us, struct ddp_err *err)
{
    cudaGraphExec_t exec;
    int rc = record(x, how, &exec, err);
    *us = INFINITY;
    for (int i = 0; i <= ROUNDS && rc == 0; i++) {
        double round = INFINITY;
        rc = time_round(x, exec, &round, err);
        if (i > 0 || round > 2 * hopeless * best)
            *us = fmin(*us, round);
        if (isfinite(*us) && *us > hopeless * best)
            break;
    }
    if (exec)
        cudaGraphExecDestroy(exec);
    return rc;
}

/* Relative error of the result; NaN if the result has NaNs. */
static int compare(const struct trial *x, double *error, struct ddp_err *err)
{
    double parts[2][CUDA_PARTS], difference = 0, whole = 0;
    cudaStream_t stream = x->net->stream;
    TRY(check_cuda(cudaMemsetAsync(x->net->room, 0, sizeof parts, stream), what, err));
    cuda_differ(x->on.out.at, x->expected, (int64_t)x->on.out.n, x->on.out.type,
                (double *)x->net->room, stream);
    TRY(check_launches(what, err));
    TRY(check_cuda(cudaMemcpyAsync(parts, x->net->room, sizeof parts,
                                   cudaMemcpyDeviceToHost, stream),
                   what, err));
    TRY(check_cuda(cudaStreamSynchronize(stream), what, err));
    for (int i = 0; i < CUDA_PARTS; i++) {
        difference += parts[0][i];
        whole += parts[1][i];
    }
    *error = difference == 0 ? 0 : sqrt(difference / whole);
    return 0;
}

/* ---- a product ---- */

/* One warning per product, whatever its number of samples. */
static void warn(struct tuner *t, const struct trial *x, const char *name, double error)
{
    static const char *const passes[] = {"forward", "gradient of weights",
                                         "gradient of inputs"};
    size_t n = t->warnings.n;
    char *line =
        xasprintf("'%s', %s: %s %.24s is left out",
                  x->net->layers[x->at->layer].spec->name, passes[x->at->pass],
                  *name == 'g' ? "cuDNN's engine" : "cuBLASLt's algorithm", name + 1);
    for (size_t i = 0; i < n; i++) {
        if (strncmp(t->warnings.v[i], line, strlen(line)) == 0)
            n = 0;
    }
    if (n == t->warnings.n)
        strv_pushf(&t->warnings, "%s: relative error %.2g", line, error);
    free(line);
}

/* Time of a candidate; INFINITY if it cannot be used. Only an error of the device is
 * returned. */
static int try_candidate(struct tuner *t, const struct trial *x, const char *name,
                         double best, double *us, struct ddp_err *err)
{
    struct algorithm how;
    struct ddp_err ignored;
    double error = NAN;
    *us = INFINITY;
    const struct site *at = x->at;
    if (!at->of->build(x->net, at->layer, at->plan, at->pass, name, &how))
        return 0;
    if (play_once(x, &how, &ignored) == 0 && compare(x, &error, err) == 0) {
        if (!(error <= apart[x->net->settings.precision]))
            warn(t, x, name, error);
        else if (time_plays(x, &how, best, us, &ignored) < 0)
            *us = INFINITY;
    }
    check_launches(what, &ignored); /* clears the refusal's error */
    return check_cuda(cudaStreamSynchronize(x->net->stream), what, err);
}

/* Result and time of the default algorithm, on generated inputs. */
static int begin_trial(struct trial *x, double *us, struct ddp_err *err)
{
    const struct algorithm *usual = &x->at->plan->how[x->at->pass];
    cudaStream_t stream = x->net->stream;
    const struct site *at = x->at;
    at->of->operands(x->net, at->layer, at->plan->n, at->pass, &x->on);
    for (uint32_t k = 0; k < ARRAY_LEN(x->on.in); k++) {
        if (x->on.in[k].at)
            cuda_scatter(x->on.in[k].at, (int64_t)x->on.in[k].n, x->on.in[k].type, 1 + k,
                         stream);
    }
    size_t bytes = x->on.out.n * type_size(x->on.out.type);
    TRY(play_once(x, usual, err));
    TRY(check_cuda(cudaMemcpyAsync(x->expected, x->on.out.at, bytes,
                                   cudaMemcpyDeviceToDevice, stream),
                   what, err));
    return time_plays(x, usual, INFINITY, us, err);
}

static void add_choice(struct tuner *t, const char *key, const char *name, double gain)
{
    size_t i = t->choices.n;
    strv_env_push(&t->choices, key, name);
    t->gains = xrealloc(t->gains, i + 1, sizeof *t->gains);
    while (t->ngains < i)
        t->gains[t->ngains++] = 0;
    t->gains[t->ngains++] = gain;
}

static int choose(struct tuner *t, struct trial *x, struct ddp_err *err)
{
    const struct site *at = x->at;
    char names[MOST_CANDIDATES][ALGORITHM_NAME];
    double usual, best, us;
    int64_t began = now_ns();
    const char *chosen = AUTOTUNE_USUAL;
    if (t->spent_ns >= t->most_ns || !x->expected) {
        t->products++;
        t->in_vain++;
        add_choice(t, at->key, chosen, 0);
        return 0;
    }
    TRY(begin_trial(x, &usual, err));
    best = usual;
    int tried = 0;
    int n =
        at->of->list(x->net, at->layer, at->plan, at->pass, names, (int)ARRAY_LEN(names));
    for (; tried < n && t->spent_ns + now_ns() - began < t->most_ns; tried++) {
        TRY(try_candidate(t, x, names[tried], best, &us, err));
        if (us < best && us < faster * usual) {
            best = us;
            chosen = names[tried];
        }
    }
    add_choice(t, at->key, chosen, usual - best);
    t->spent_ns += now_ns() - began;
    t->products++;
    t->in_vain += tried < n;
    t->changed += strcmp(chosen, AUTOTUNE_USUAL) != 0;
    t->usual_us += usual;
    t->us += best;
    return 0;
}

/* ---- all products of a net ---- */

static int choose_for(struct layers *net, const struct site *at, void *arg,
                      struct ddp_err *err)
{
    struct trial *x = arg;
    if (strv_env_get(&x->t->choices, at->key))
        return 0;
    x->at = at;
    return choose(x->t, x, err);
}

/* Bytes of the largest output. */
static int largest(struct layers *net, const struct site *at, void *arg,
                   struct ddp_err *err)
{
    size_t *most = arg;
    struct operands on;
    at->of->operands(net, at->layer, at->plan->n, at->pass, &on);
    size_t bytes = on.out.n * type_size(on.out.type);
    *most = bytes > *most ? bytes : *most;
    return 0;
}

int autotune_measure(struct tuner *t, struct layers *net, int n, float *grads,
                     struct ddp_err *err)
{
    struct trial x = {.t = t, .net = net};
    struct layers_plan *p = layers_plan(net, n, err);
    size_t bytes = 0;
    if (!p || layers_settle(net, p, grads, err) < 0)
        return -1;
    layers_each_product(net, p, largest, &bytes, err);
    int rc = bytes == 0 ? 0 : check_cuda(cudaMalloc(&x.expected, bytes), what, err);
    if (rc < 0) { /* tuning is optional: no error for want of memory */
        check_launches(what, err);
        strv_pushf(&t->warnings,
                   "products are not measured: no %.1f MiB of GPU memory for results",
                   (double)bytes / 0x1p20);
        rc = 0;
    }
    if (rc == 0)
        rc = check_cuda(cudaEventCreate(&x.began), what, err);
    if (rc == 0)
        rc = check_cuda(cudaEventCreate(&x.ended), what, err);
    if (rc == 0)
        rc = layers_each_product(net, p, choose_for, &x, err);
    if (x.began)
        cudaEventDestroy(x.began);
    if (x.ended)
        cudaEventDestroy(x.ended);
    cudaFree(x.expected);
    return rc;
}

/* ---- applying the choices ---- */

struct attempt {
    const struct strv *choices;
    uint8_t *fails;
};

static int build_chosen(struct layers *net, const struct site *at, void *arg,
                        struct ddp_err *err)
{
    const struct attempt *a = arg;
    struct algorithm how;
    size_t i = strv_env_find(a->choices, at->key);
    if (i == a->choices->n)
        return 0;
    const char *name = a->choices->v[i] + strlen(at->key) + 1;
    if (strcmp(name, AUTOTUNE_USUAL) == 0 || tuned_find(net, at->key))
        return 0;
    if (!at->of->build(net, at->layer, at->plan, at->pass, name, &how)) {
        a->fails[i] = 1;
        return 0;
    }
    net->chosen = xrealloc(net->chosen, net->nchosen + 1, sizeof *net->chosen);
    net->chosen[net->nchosen++] = (struct tuned){xstrdup(at->key), how};
    return 0;
}

int autotune_try(const struct tuner *t, struct layers *net, int n, uint8_t *fails,
                 struct ddp_err *err)
{
    struct attempt a = {&t->choices, fails};
    struct layers_plan *p = layers_plan(net, n, err);
    return p ? layers_each_product(net, p, build_chosen, &a, err) : -1;
}

/* A candidate must have been built on every rank. */
static bool is_wanted(const struct strv *c, const struct tuned *chosen)
{
    const char *name = strv_env_get(c, chosen->key);
    return name && strcmp(name, AUTOTUNE_USUAL) != 0;
}

void autotune_take(const struct tuner *t, struct layers *net)
{
    size_t kept = 0;
    for (size_t i = 0; i < net->nchosen; i++) {
        struct tuned *c = &net->chosen[i];
        if (is_wanted(&t->choices, c)) {
            net->chosen[kept++] = *c;
            continue;
        }
        free(c->key);
    }
    net->nchosen = kept;
    for (int i = 0; i < net->nplans; i++) {
        tuned_take(net, net->plans[i]);
        net->plans[i]->warm = false; /* the libraries may not have initialised these */
    }
}

void autotune_drop(struct tuner *t, size_t i)
{
    const char *entry = t->choices.v[i];
    char *key = xstrndup(entry, strcspn(entry, "="));
    if (i < t->ngains && t->gains[i] > 0) {
        t->changed--;
        t->us += t->gains[i];
        t->gains[i] = 0;
    }
    t->lacking++;
    strv_env_set(&t->choices, key, AUTOTUNE_USUAL);
    free(key);
}

/* ---- as text ---- */

static const char version[] = "1 ";

char *autotune_write(const struct tuner *t, const char *header)
{
    char *text;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    if (!f)
        abort(); /* as mem.h does without memory */
    fprintf(f, "%s%s", version, header);
    for (size_t i = 0; i < t->choices.n; i++)
        fprintf(f, ";%s", t->choices.v[i]);
    fclose(f);
    return text;
}

bool autotune_read(struct tuner *t, const char *text, char header[AUTOTUNE_HEADER])
{
    size_t skip = sizeof version - 1, n = strcspn(text, ";");
    strv_finish(&t->choices);
    t->ngains = 0;
    if (strncmp(text, version, skip) != 0 || n - skip >= AUTOTUNE_HEADER)
        return false;
    snprintf(header, AUTOTUNE_HEADER, "%.*s", (int)(n - skip), text + skip);
    for (text += n; *text == ';'; text += n) {
        n = strcspn(++text, ";");
        size_t key = strcspn(text, "=");
        if (key == 0 || key + 1 >= n || key >= PRODUCT_KEY) {
            strv_finish(&t->choices);
            return false;
        }
        strv_push_nodup(&t->choices, xstrndup(text, n));
    }
    return true;
}

int autotune_header(char *text, struct ddp_err *err)
{
    struct cudaDeviceProp prop;
    int device = 0;
    TRY(check_cuda(cudaGetDevice(&device), what, err));
    TRY(check_cuda(cudaGetDeviceProperties(&prop, device), what, err));
    snprintf(text, AUTOTUNE_HEADER, "cuDNN %zu, cuBLASLt %zu, %.80s", cudnnGetVersion(),
             cublasLtGetVersion(), prop.name);
    return 0;
}

/* Appends to text. */
static void add(char *text, size_t size, const char *fmt, ...)
{
    va_list args;
    size_t used = strlen(text);
    va_start(args, fmt);
    vsnprintf(text + used, size - used, fmt, args);
    va_end(args);
}

void autotune_describe(const struct tuner *t, char *text, size_t size)
{
    *text = '\0';
    if (t->products > 0)
        add(text, size,
            "%d of %d product%s by another algorithm: %.4g us instead of %.4g; measured in "
            "%.1f of %.1f s",
            t->changed, t->products, t->products == 1 ? "" : "s", t->us, t->usual_us,
            (double)t->spent_ns / 1e9, (double)t->most_ns / 1e9);
    else if (t->taken_over)
        add(text, size, "as the checkpoint says: %zu products", t->choices.n);
    else
        add(text, size, "nothing: no step is left to take");
    if (t->in_vain > 0)
        add(text, size, ", which was too little for %d", t->in_vain);
    if (t->lacking > 0)
        add(text, size, "; %d other%s not to be had on all ranks", t->lacking,
            t->lacking == 1 ? "" : "s");
}

void autotune_free(struct tuner *t)
{
    strv_finish(&t->choices);
    free(t->gains);
    strv_finish(&t->warnings);
}
