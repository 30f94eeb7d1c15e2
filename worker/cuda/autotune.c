/* worker/cuda/autotune.c - see layers.h
 *
 * Every algorithm that the library offers for a product, and that the numerical notes
 * allow, is timed on the net's own buffers, captured as in a step. The fastest is chosen
 * if its gain exceeds the error of the measurement. One that cannot be built, captured
 * or executed is skipped. As in PyTorch's benchmark mode, results are not compared.
 *
 * The product runs repeatedly when it is timed, so its operands are in cache more
 * often than in a step. autotune_ranks.c has the choices for all ranks and for later
 * runs.
 */
#include "worker/cuda/layers_impl.h"

#include "common/duration.h"
#include "common/mem.h"

#include <math.h>
#include <stdio.h>

/* A graph runs the product this many times; the fastest of this many rounds counts.
 * Candidates are counted, not places: in fp32 cuDNN lists 30 engines for tensor cores
 * first, which may not be used. */
enum { PLAYS = 4, ROUNDS = 4, CANDIDATES = 24 };
/* Smaller gains are within the error of the measurement. */
static const double faster = 0.98;

struct trial {
    struct tuner *t;
    cudaEvent_t began, ended;
};

static void record(struct layers *net, const struct site *at, cudaGraphExec_t *exec)
{
    cudaGraph_t graph = NULL;
    if (!CUDA(cudaStreamBeginCapture(net->stream, cudaStreamCaptureModeRelaxed)))
        return;
    for (int i = 0; i < PLAYS; i++)
        at->of->play(net, at->layer, at->plan, at->pass);
    cuda_note(cudaStreamEndCapture(net->stream, &graph)); /* also after a failure */
    CUDA(cudaGraphInstantiate(exec, graph, 0));
    if (graph)
        cudaGraphDestroy(graph);
}

/* Times a launch that follows one that is not timed, so that the host submits it while
 * the device is busy. */
static void time_round(const struct trial *x, cudaStream_t stream, cudaGraphExec_t exec,
                       double *us)
{
    float ms = 0;
    CUDA(cudaGraphLaunch(exec, stream));
    CUDA(cudaEventRecord(x->began, stream));
    CUDA(cudaGraphLaunch(exec, stream));
    CUDA(cudaEventRecord(x->ended, stream));
    CUDA(cudaStreamSynchronize(stream));
    CUDA(cudaEventElapsedTime(&ms, x->began, x->ended));
    if (!cuda_failed())
        *us = fmin(*us, (double)ms * 1000 / PLAYS);
}

/* Microseconds of one run of the plan's algorithm. */
static double time_product(const struct trial *x, struct layers *net,
                           const struct site *at)
{
    cudaGraphExec_t exec = NULL;
    double us = INFINITY;
    /* its first run may load and allocate, which is not allowed during capture */
    at->of->play(net, at->layer, at->plan, at->pass);
    record(net, at, &exec);
    for (int i = 0; i < ROUNDS; i++)
        time_round(x, net->stream, exec, &us);
    if (exec)
        cudaGraphExecDestroy(exec);
    return us;
}

/* The time of the plan's algorithm; INFINITY if it cannot be used. Only an error of the
 * device is a failure. */
static double try_candidate(const struct trial *x, struct layers *net,
                            const struct site *at)
{
    double us = time_product(x, net, at);
    if (cuda_outcome(NULL) < 0)
        us = INFINITY;
    cudaGetLastError(); /* clears the refusal's error */
    CUDA(cudaStreamSynchronize(net->stream));
    return us;
}

/* The place of the fastest: of the plan's algorithm, the default, and all others. */
static int find_fastest(const struct trial *x, struct layers *net, const struct site *at)
{
    struct algorithm *how = &at->plan->how[at->pass], usual = *how;
    double usual_us = time_product(x, net, at), best = usual_us;
    int tried = 0, chosen = usual.place;
    for (int place = 0; !cuda_failed() && tried < CANDIDATES; place++) {
        how->place = place;
        int rc = at->of->build(net, at->layer, at->plan, at->pass, how);
        if (rc < 0) { /* behind the end of the list */
            cuda_outcome(NULL);
            break;
        }
        if (rc <= 0 || place == usual.place)
            continue;
        tried++;
        double us = try_candidate(x, net, at);
        if (us < best && us < faster * usual_us) {
            best = us;
            chosen = place;
        }
    }
    *how = usual;
    x->t->changed += chosen != usual.place;
    x->t->usual_us += usual_us;
    x->t->us += best;
    return chosen;
}

static void choose(struct layers *net, const struct site *at, void *arg)
{
    const struct trial *x = arg;
    struct tuner *t = x->t;
    int chosen = at->plan->how[at->pass].place;
    int64_t began = now_ns();
    if (layers_chosen(t->choices, at->key) >= 0)
        return;
    if (t->left_ns > 0) {
        chosen = find_fastest(x, net, at);
        t->left_ns -= now_ns() - began;
        t->measured++;
    } else {
        t->late++;
    }
    xappendf(&t->choices, "%s=%d\n", at->key, chosen);
}

void autotune_measure(struct tuner *t, struct layers *net, int n, float *grads)
{
    struct trial x = {.t = t};
    struct layers_plan *p = layers_plan(net, n);
    if (!p)
        return;
    layers_settle(net, p, grads);
    CUDA(cudaEventCreate(&x.began));
    CUDA(cudaEventCreate(&x.ended));
    layers_each_product(net, p, choose, &x);
    if (x.began)
        cudaEventDestroy(x.began);
    if (x.ended)
        cudaEventDestroy(x.ended);
}

char *autotune_describe(const struct tuner *t)
{
    if (t->measured + t->late == 0)
        return xstrdup("as measured before");
    return xasprintf("%d of %d product%s by another algorithm: %.4g us instead of %.4g",
                     t->changed, t->measured, t->measured == 1 ? "" : "s", t->us,
                     t->usual_us);
}
