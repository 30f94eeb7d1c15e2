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

/* An array of n elements. */
struct array {
    void *at; /* NULL: none */
    size_t n;
    enum cuda_type type;
};

/* The operands of a product beside the weights, and its output. Converting a filter's
 * gradient to float counts as part of the product. */
struct operands {
    struct array in[2], out;
};

/* A product whose algorithms are being measured. */
struct trial {
    struct tuner *t;
    struct layers *net;
    const struct site *at;
    struct operands on;
    void *expected; /* result of the default algorithm */
    cudaEvent_t began, ended;
};

static struct operands operands_of(const struct layers *net, const struct site *at)
{
    const struct layer *l = at->layer;
    size_t x = (size_t)at->plan->n * l->inputs, y = (size_t)at->plan->n * l->before;
    struct operands o = {{{input_of(net, l), x, net->type}},
                         {product_grad_of(net, l), y, net->type}};
    if (at->pass == PASS_FORWARD) {
        o.out = (struct array){product_of(net, l), y, l->type};
        if (l->shortcut >= 0)
            o.in[1] = (struct array){net->layers[l->shortcut].y, y, net->type};
    } else if (at->pass == PASS_WEIGHTS) {
        o.in[1] = o.out;
        o.out = (struct array){grads_of(net, l->weight), l->weight->count, CUDA_F32};
    } else {
        o.in[0] = o.out;
        o.out = (struct array){gradient_of(net, l->in), x, net->type};
    }
    return o;
}

/* ---- one algorithm: the plan's ---- */

static int play(const struct trial *x, struct ddp_err *err)
{
    const struct site *at = x->at;
    return at->of->play(x->net, at->layer, at->plan, at->pass, err);
}

/* Runs on the same inputs each time. The output is overwritten first, so that the
 * result of the previous algorithm is not taken for that of one that writes nothing;
 * so is net->dw, which is converted into it. */
static int play_once(const struct trial *x, struct ddp_err *err)
{
    struct layers *net = x->net;
    cuda_scatter(x->on.out.at, (int64_t)x->on.out.n, x->on.out.type, 3, net->stream);
    if (net->dw && x->at->pass == PASS_WEIGHTS && is_conv(x->at->layer))
        TRY(check_cuda(cudaMemsetAsync(net->dw, 0xff, x->on.out.n * type_size(net->type),
                                       net->stream),
                       what, err));
    TRY(play(x, err));
    TRY(check_launches(what, err));
    return check_cuda(cudaStreamSynchronize(net->stream), what, err);
}

static int record(const struct trial *x, cudaGraphExec_t *exec, struct ddp_err *err)
{
    cudaGraph_t graph = NULL;
    cudaStream_t stream = x->net->stream;
    int rc = 0;
    *exec = NULL;
    TRY(check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), what,
                   err));
    for (int i = 0; i < PLAYS && rc == 0; i++)
        rc = play(x, err);
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
static int time_plays(const struct trial *x, double best, double *us, struct ddp_err *err)
{
    cudaGraphExec_t exec;
    int rc = record(x, &exec, err);
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
static void warn(struct tuner *t, const struct site *at, double error)
{
    static const char *const passes[] = {"forward", "gradient of weights",
                                         "gradient of inputs"};
    size_t n = t->warnings.n;
    char *line =
        xasprintf("'%s', %s: %s's algorithm %d is left out", at->layer->spec->name,
                  passes[at->pass], is_conv(at->layer) ? "cuDNN" : "cuBLASLt",
                  at->plan->how[at->pass].place);
    for (size_t i = 0; i < n; i++) {
        if (strncmp(t->warnings.v[i], line, strlen(line)) == 0)
            n = 0;
    }
    if (n == t->warnings.n)
        strv_pushf(&t->warnings, "%s: relative error %.2g", line, error);
    free(line);
}

/* Time of the plan's algorithm; INFINITY if it cannot be used. Only an error of the
 * device is returned. */
static int try_candidate(const struct trial *x, double best, double *us,
                         struct ddp_err *err)
{
    struct ddp_err ignored;
    double error = NAN;
    *us = INFINITY;
    if (play_once(x, &ignored) == 0 && compare(x, &error, err) == 0) {
        if (!(error <= apart[x->net->settings.precision]))
            warn(x->t, x->at, error);
        else if (time_plays(x, best, us, &ignored) < 0)
            *us = INFINITY;
    }
    check_launches(what, &ignored); /* clears the refusal's error */
    return check_cuda(cudaStreamSynchronize(x->net->stream), what, err);
}

/* Result and time of the default algorithm, on generated inputs. */
static int begin_trial(struct trial *x, double *us, struct ddp_err *err)
{
    cudaStream_t stream = x->net->stream;
    x->on = operands_of(x->net, x->at);
    for (uint32_t k = 0; k < ARRAY_LEN(x->on.in); k++) {
        if (x->on.in[k].at)
            cuda_scatter(x->on.in[k].at, (int64_t)x->on.in[k].n, x->on.in[k].type, 1 + k,
                         stream);
    }
    size_t bytes = x->on.out.n * type_size(x->on.out.type);
    TRY(play_once(x, err));
    TRY(check_cuda(cudaMemcpyAsync(x->expected, x->on.out.at, bytes,
                                   cudaMemcpyDeviceToDevice, stream),
                   what, err));
    return time_plays(x, INFINITY, us, err);
}

static int choose(struct tuner *t, struct trial *x, struct ddp_err *err)
{
    const struct site *at = x->at;
    struct algorithm *how = &at->plan->how[at->pass], usual = *how;
    struct ddp_err ignored;
    double usual_us, best, us;
    int64_t began = now_ns();
    TRY(begin_trial(x, &usual_us, err));
    best = usual_us;
    int tried = 0, rc = 0, chosen = usual.place;
    bool late = false;
    for (int place = 0; rc >= 0 && tried < MOST_CANDIDATES && !late; place++) {
        how->place = place;
        rc = place == usual.place
                 ? 0
                 : at->of->build(x->net, at->layer, at->plan, at->pass, how, &ignored);
        late = rc > 0 && t->spent_ns + now_ns() - began >= t->most_ns;
        if (rc <= 0 || late)
            continue;
        tried++;
        TRY(try_candidate(x, best, &us, err));
        if (us < best && us < faster * usual_us) {
            best = us;
            chosen = place;
        }
    }
    *how = usual;
    if (!late)
        strv_pushf(&t->choices, "%s=%d", at->key, chosen);
    else
        strv_env_push(&t->choices, at->key, "");
    t->spent_ns += now_ns() - began;
    t->in_vain += late;
    t->changed += !late && chosen != usual.place;
    t->usual_us += usual_us;
    t->us += late ? usual_us : best;
    return 0;
}

/* ---- all products of a net ---- */

static int choose_for(struct layers *net, const struct site *at, void *arg,
                      struct ddp_err *err)
{
    struct trial *x = arg;
    struct tuner *t = x->t;
    if (strv_env_get(&t->choices, at->key))
        return 0;
    const char *place = strv_env_get(&t->earlier, at->key);
    if (place) {
        t->known += *place != '\0';
        strv_env_push(&t->choices, at->key, place);
        return 0;
    }
    t->products++;
    if (t->spent_ns >= t->most_ns || !x->expected) {
        t->in_vain++;
        strv_env_push(&t->choices, at->key, "");
        return 0;
    }
    x->at = at;
    return choose(t, x, err);
}

/* Bytes of the largest output. */
static int largest(struct layers *net, const struct site *at, void *arg,
                   struct ddp_err *err)
{
    size_t *most = arg;
    struct operands on = operands_of(net, at);
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
    else if (t->choices.n > 0)
        add(text, size, "as measured before: %zu products", t->known);
    else
        add(text, size, "nothing: no step is left to take");
    if (t->in_vain > 0)
        add(text, size, ", which was too little for %d", t->in_vain);
    if (t->others > 0)
        add(text, size, "; the default on %d rank%s with another GPU or other libraries",
            t->others, t->others == 1 ? "" : "s");
    if (*t->unkept)
        add(text, size, "; not kept for later runs: %s", t->unkept);
}

void autotune_free(struct tuner *t)
{
    strv_finish(&t->choices);
    strv_finish(&t->earlier);
    strv_finish(&t->warnings);
}
