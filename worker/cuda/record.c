/* worker/cuda/record.c - see engine_impl.h: a step, put on streams that are being
 * recorded
 *
 * Two streams: main, and the sums over the ranks, which forks off as gradients become
 * final and joins before the optimiser.
 */
#include "worker/cuda/engine_impl.h"

#include <string.h>

/* All of the block from where the bucket begins, in the plan's order; the last has the
 * head in front. */
static int sum_bucket(struct engine *e, struct ddp_err *err)
{
    struct bucket b = e->buckets[e->started];
    size_t more = e->started == e->nbuckets - 1 ? CUDA_HEAD : 0;
    e->started++;
    return comm_all_reduce(e->comm, e->grads + b.offset - more, b.count + more, e->sums,
                           err);
}

/* The sums' stream goes on from where main is now. */
static int fork_sums(struct engine *e, struct ddp_err *err)
{
    return check_cuda(cudaEventRecord(e->ready, e->main), "a step", err) < 0
               ? -1
               : check_cuda(cudaStreamWaitEvent(e->sums, e->ready, 0), "a step", err);
}

/* A range of a batch's gradients is final: of the step's, once all batches are in. */
static int gradients_ready(size_t offset, size_t count, void *arg, struct ddp_err *err)
{
    struct engine *e = arg;
    bool forked = false;
    if (!e->first)
        cuda_add(e->grads + offset, e->extra + offset, (int64_t)count, e->main);
    if (!e->comm || !e->job.buckets.overlap || !e->last)
        return 0;
    while (e->started < e->nbuckets - 1 && e->buckets[e->started].offset >= offset) {
        if ((!forked && fork_sums(e, err) < 0) || sum_bucket(e, err) < 0)
            return -1;
        forked = true;
    }
    return 0;
}

static int sum_rest(struct engine *e, struct ddp_err *err)
{
    size_t all = model_param_count(e->job.model);
    if (!e->comm)
        return 0;
    if (fork_sums(e, err) < 0)
        return -1;
    if (!e->job.buckets.overlap &&
        comm_all_reduce(e->comm, e->block, CUDA_HEAD + all, e->sums, err) < 0)
        return -1;
    while (e->job.buckets.overlap && e->started < e->nbuckets) {
        if (sum_bucket(e, err) < 0)
            return -1;
    }
    return check_cuda(cudaEventRecord(e->summed, e->sums), "a step", err) < 0
               ? -1
               : check_cuda(cudaStreamWaitEvent(e->main, e->summed, 0), "a step", err);
}

void engine_gather(struct engine *e, const struct cuda_step *in, const uint32_t *which,
                   int n)
{
    int len = (int)image_bytes(e);
    if (classifies(e))
        cuda_gather_images(in, which, n, len, len / e->job.data->shape.C, e->as_float,
                           layers_input(e->net), e->labels, e->main);
    else
        cuda_gather_floats(in, which, n, len, e->job.data->shape.outputs,
                           layers_input(e->net), e->targets, e->main);
}

void engine_loss(struct engine *e, int n, const struct cuda_step *in, int batch,
                 float *dy)
{
    int outputs = e->job.data->shape.outputs;
    if (classifies(e))
        cuda_softmax_loss(layers_output(e->net), e->labels, dy, n, outputs, in, batch,
                          head_of(e), e->own, e->main);
    else
        cuda_mse_loss(layers_output(e->net), e->targets, dy, n, outputs, in, batch,
                      head_of(e), e->own, e->main);
}

/* The formulas' constants are those of worker/optim/optim.c. */
static int put_optimiser(struct engine *e, struct ddp_err *err)
{
    const struct optim *o = e->job.optim;
    int64_t n = (int64_t)o->n;
    const char *name = o->type->name;
    if (strcmp(name, "sgd") == 0)
        cuda_sgd(e->weights, e->grads, e->states[0], n, o->settings.momentum,
                 o->settings.decay, e->scale, e->in, head_of(e), e->main);
    else if (strcmp(name, "adam") == 0)
        cuda_adam(e->weights, e->grads, e->states[0], e->states[1], n, 0.9f, 0.999f,
                  1e-8f, o->settings.decay, e->updates, e->scale, e->in, head_of(e),
                  e->main);
    else if (strcmp(name, "adadelta") == 0)
        cuda_adadelta(e->weights, e->grads, e->states[0], e->states[1], n, 0.9f, 1e-6f,
                      o->settings.decay, e->scale, e->in, head_of(e), e->main);
    else
        return err_set(err, "the cuda engine has no optimizer '%s'", name);
    return 0;
}

/* All of this rank's samples, batch after batch. */
static int put_batches(struct engine *e, int n, struct ddp_err *err)
{
    for (int done = 0, i = 0, k; done < n; done += k, i++) {
        k = n - done < e->job.batch_size ? n - done : e->job.batch_size;
        struct layers_plan *plan = layers_plan(e->net, k, err);
        e->first = done == 0;
        e->last = done + k == n;
        if (!plan)
            return -1;
        engine_gather(e, e->in, which_of(e->in) + done, k);
        if (layers_forward(e->net, plan, e->in, i, err) < 0)
            return -1;
        engine_loss(e, k, e->in, i, layers_output_grad(e->net));
        if (layers_backward(e->net, plan, e->first ? e->grads : e->extra, gradients_ready,
                            e, err) < 0)
            return -1;
    }
    return 0;
}

static int put_step(struct engine *e, int n, struct ddp_err *err)
{
    const struct engine_job *job = &e->job;
    size_t floats = model_param_count(job->model);
    e->started = 0;
    if (n > 0 && put_batches(e, n, err) < 0)
        return -1;
    if (n == 0) {
        cuda_no_loss(e->in, head_of(e), e->own, e->main);
        if (check_cuda(cudaMemsetAsync(e->grads, 0, floats * sizeof(float), e->main),
                       "a step", err) < 0)
            return -1;
    }
    if (sum_rest(e, err) < 0)
        return -1;
    if (job->clip_norm > 0 || job->skip_bad)
        cuda_clip(e->grads, (int64_t)floats, (float)job->clip_norm, e->parts, head_of(e),
                  e->scale, e->main);
    if (put_optimiser(e, err) < 0)
        return -1;
    cuda_finish(head_of(e), e->own, job->skip_bad, e->result, e->updates, e->main);
    return check_cuda(cudaGetLastError(), "a step", err);
}

/* Plans allocate, and nothing may while a graph is being recorded. */
static int make_plans(struct engine *e, int n, struct ddp_err *err)
{
    int whole = n / e->job.batch_size, rest = n % e->job.batch_size;
    if ((whole > 0 && !layers_plan(e->net, e->job.batch_size, err)) ||
        (rest > 0 && !layers_plan(e->net, rest, err)))
        return -1;
    return 0;
}

static cudaGraphExec_t record(struct engine *e, int n, struct ddp_err *err)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    if (make_plans(e, n, err) < 0)
        return NULL;
    if (check_cuda(cudaStreamBeginCapture(e->main, cudaStreamCaptureModeThreadLocal),
                   "recording a step", err) < 0)
        return NULL;
    int rc = put_step(e, n, err);
    cudaError_t end = cudaStreamEndCapture(e->main, &graph);
    if (rc == 0 && check_cuda(end, "recording a step", err) == 0)
        check_cuda(cudaGraphInstantiate(&exec, graph, 0), "recording a step", err);
    if (graph)
        cudaGraphDestroy(graph);
    return exec;
}

cudaGraphExec_t engine_graph(struct engine *e, int n, struct ddp_err *err)
{
    for (int i = 0; i < e->ngraphs; i++) {
        if (e->graphs[i].n == n)
            return e->graphs[i].exec;
    }
    cudaGraphExec_t exec = record(e, n, err);
    if (!exec)
        return NULL;
    int at = e->ngraphs < MAX_GRAPHS ? e->ngraphs++ : 1;
    if (e->graphs[at].exec)
        cudaGraphExecDestroy(e->graphs[at].exec);
    e->graphs[at] = (struct graph){n, exec};
    return exec;
}
