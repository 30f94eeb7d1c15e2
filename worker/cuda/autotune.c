/* worker/cuda/autotune.c - see autotune.h */
#include "worker/cuda/autotune.h"

#include "common/duration.h"
#include "common/mem.h"
#include "worker/cuda/layers_impl.h"

#include <math.h>
#include <stdio.h>

/* A graph runs the product this many times; the fastest of this many rounds counts.
 * Candidates are counted, not places: in fp32 cuDNN lists 30 engines for tensor cores
 * first, which may not be used. */
enum { PLAYS = 4, ROUNDS = 4, CANDIDATES = 24 };
/* Smaller gains are within the error of the measurement. */
static const double faster = 0.98;

static const char *const what = "measuring products";

struct trial {
    struct tuner *t;
    cudaEvent_t began, ended;
};

static int record(struct layers *net, const struct site *at, cudaGraphExec_t *exec,
                  struct ddp_err *err)
{
    cudaGraph_t graph = NULL;
    int rc = 0;
    TRY(check_cuda(cudaStreamBeginCapture(net->stream, cudaStreamCaptureModeRelaxed),
                   what, err));
    for (int i = 0; i < PLAYS && rc == 0; i++)
        rc = at->of->play(net, at->layer, at->plan, at->pass, err);
    cudaError_t end = cudaStreamEndCapture(net->stream, &graph);
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
static int time_round(const struct trial *x, cudaStream_t stream, cudaGraphExec_t exec,
                      double *us, struct ddp_err *err)
{
    float ms = 0;
    TRY(check_cuda(cudaGraphLaunch(exec, stream), what, err));
    TRY(check_cuda(cudaEventRecord(x->began, stream), what, err));
    TRY(check_cuda(cudaGraphLaunch(exec, stream), what, err));
    TRY(check_cuda(cudaEventRecord(x->ended, stream), what, err));
    TRY(check_cuda(cudaStreamSynchronize(stream), what, err));
    TRY(check_cuda(cudaEventElapsedTime(&ms, x->began, x->ended), what, err));
    *us = fmin(*us, (double)ms * 1000 / PLAYS);
    return 0;
}

/* Microseconds of one run of the plan's algorithm. */
static int time_product(const struct trial *x, struct layers *net, const struct site *at,
                        double *us, struct ddp_err *err)
{
    cudaGraphExec_t exec = NULL;
    *us = INFINITY;
    /* its first run may load and allocate, which is not allowed during capture */
    TRY(at->of->play(net, at->layer, at->plan, at->pass, err));
    int rc = record(net, at, &exec, err);
    for (int i = 0; i < ROUNDS && rc == 0; i++)
        rc = time_round(x, net->stream, exec, us, err);
    if (exec)
        cudaGraphExecDestroy(exec);
    return rc;
}

/* The time of the plan's algorithm; INFINITY if it cannot be used. Only an error of the
 * device is returned. */
static int try_candidate(const struct trial *x, struct layers *net, const struct site *at,
                         double *us, struct ddp_err *err)
{
    struct ddp_err ignored;
    if (time_product(x, net, at, us, &ignored) < 0)
        *us = INFINITY;
    check_launches(what, &ignored); /* clears the refusal's error */
    return check_cuda(cudaStreamSynchronize(net->stream), what, err);
}

/* Of the plan's algorithm, the default, and all others. */
static int find_fastest(const struct trial *x, struct layers *net, const struct site *at,
                        int *chosen, struct ddp_err *err)
{
    struct algorithm *how = &at->plan->how[at->pass], usual = *how;
    struct ddp_err ignored;
    double usual_us, us, best;
    int rc = 0, tried = 0;
    TRY(time_product(x, net, at, &usual_us, err));
    best = usual_us;
    for (int place = 0; rc >= 0 && tried < CANDIDATES; place++) {
        how->place = place;
        rc = at->of->build(net, at->layer, at->plan, at->pass, how, &ignored);
        if (rc <= 0 || place == usual.place)
            continue;
        tried++;
        TRY(try_candidate(x, net, at, &us, err));
        if (us < best && us < faster * usual_us) {
            best = us;
            *chosen = place;
        }
    }
    *how = usual;
    x->t->changed += *chosen != usual.place;
    x->t->usual_us += usual_us;
    x->t->us += best;
    return 0;
}

static int choose(struct layers *net, const struct site *at, void *arg,
                  struct ddp_err *err)
{
    const struct trial *x = arg;
    struct tuner *t = x->t;
    int chosen = at->plan->how[at->pass].place;
    int64_t began = now_ns();
    if (layers_chosen(t->choices, at->key) >= 0)
        return 0;
    if (t->left_ns > 0) {
        TRY(find_fastest(x, net, at, &chosen, err));
        t->left_ns -= now_ns() - began;
        t->measured++;
    } else {
        t->late++;
    }
    xappendf(&t->choices, "%s=%d\n", at->key, chosen);
    return 0;
}

int autotune_measure(struct tuner *t, struct layers *net, int n, float *grads,
                     struct ddp_err *err)
{
    struct trial x = {.t = t};
    struct layers_plan *p = layers_plan(net, n, err);
    if (!p || layers_settle(net, p, grads, err) < 0)
        return -1;
    int rc = check_cuda(cudaEventCreate(&x.began), what, err);
    if (rc == 0)
        rc = check_cuda(cudaEventCreate(&x.ended), what, err);
    if (rc == 0)
        rc = layers_each_product(net, p, choose, &x, err);
    if (x.began)
        cudaEventDestroy(x.began);
    if (x.ended)
        cudaEventDestroy(x.ended);
    return rc;
}

char *autotune_describe(const struct tuner *t)
{
    if (t->measured + t->late == 0)
        return xstrdup("as measured before");
    return xasprintf("%d of %d product%s by another algorithm: %.4g us instead of %.4g",
                     t->changed, t->measured, t->measured == 1 ? "" : "s", t->us,
                     t->usual_us);
}
