/* worker/cuda/parallel_cuda.c - see worker/ddp/device.h: data parallelism for a program
 * whose parameters are in GPU memory
 *
 * Everything is put on one stream, in the order in which the program makes its gradients
 * known: a gradient is copied and multiplied by the rank's samples; a bucket is reduced
 * when it is complete; after the last one the optimiser updates this rank's pieces, and
 * the weights are gathered. The stream has priority, so that this is done beside the
 * program's backward pass, on its own stream.
 */
#include "worker/cuda/comm.h"
#include "worker/cuda/kernels.h"
#include "worker/cuda/resources.h"
#include "worker/ddp/device.h"
#include "worker/kernels/scratch.h"

#include "common/err.h"
#include "common/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SLOTS = 2 };

/* What the kernels of a step read, in device memory. */
struct told {
    struct cuda_step step;
    struct cuda_scaler scaler; /* gradients are multiplied by the samples of all ranks */
    struct cuda_verdict verdict;
    uint64_t updates; /* before this one */
};

struct device {
    struct device_job job;
    int index, size;
    bool shard;
    int64_t timeout_ms; /* of each wait */
    struct comm *comm;  /* owned; NULL: one rank */
    struct resources memory;
    float *weights, *grads, *states[OPTIM_STATES];
    float *on_host;  /* owned: of cuda_fetch(), until cuda_give_back() */
    bool begun;      /* the states are on the device */
    size_t *borders; /* the optimiser's */
    double *parts;
    struct told *told, *sent[SLOTS]; /* sent: pinned */
    struct cuda_verdict *verdict;    /* pinned */
    cudaStream_t stream, caller;
    cudaEvent_t now, done[SLOTS]; /* done: a slot's last step */
    size_t reduced;               /* buckets */
    uint64_t steps;
};

/* Waits for all that is on the stream. */
static void drain(struct device *d)
{
    CUDA(cudaEventRecord(d->now, d->stream));
    comm_await(d->comm, d->now, d->timeout_ms);
}

/* Makes the device's stream wait for the caller's. */
static void follow_caller(struct device *d, const char *doing)
{
    cuda_doing("%s", doing);
    stream_follow(d->stream, d->caller, d->now);
}

/* ---- making ---- */

static void check_params(const struct device *d)
{
    struct cudaPointerAttributes a;
    cuda_doing("where parameters are");
    for (size_t i = 0; i < 2 * d->job.n; i++) {
        const struct ddp_param *p = &d->job.params[i / 2];
        const float *at = i % 2 ? p->grad : p->weight;
        if (!at || !CUDA(cudaPointerGetAttributes(&a, at)) ||
            a.type == cudaMemoryTypeManaged)
            continue;
        if (a.type != cudaMemoryTypeDevice || a.device != d->index)
            cuda_fail("the %s of parameter %zu are not in the memory of GPU %d, which is "
                      "the current device",
                      i % 2 ? "gradients" : "weights", i / 2, d->index);
    }
}

static void allocate(struct device *d)
{
    struct resources *m = &d->memory;
    const struct rank_piece *last = &d->job.pieces[d->job.npieces - 1];
    size_t block = d->job.floats * sizeof(float);
    d->weights = device_alloc(m, "weights", block);
    d->grads = device_alloc(m, "gradients", block);
    d->borders = optim_alloc(m, d->job.optim, last->start + last->at.count, d->states);
    d->parts = device_alloc(m, "a step", CUDA_PARTS * sizeof *d->parts);
    d->told = device_alloc(m, "a step", sizeof *d->told);
    for (int i = 0; i < SLOTS; i++)
        d->sent[i] = pinned_alloc(m, sizeof *d->sent[i]);
    d->verdict = pinned_alloc(m, sizeof *d->verdict);
}

static int make(struct device *d, struct ddp_err *err)
{
    cuda_doing("no GPU");
    CUDA(cudaGetDevice(&d->index));
    d->memory.device = d->index;
    check_params(d);
    d->stream = stream_make(&d->memory, true);
    d->now = event_make(&d->memory, false);
    for (int i = 0; i < SLOTS; i++)
        d->done[i] = event_make(&d->memory, false);
    allocate(d);
    /* what was set to zero is not on our stream */
    CUDA(cudaDeviceSynchronize());
    return cuda_outcome(err);
}

static void cuda_close(struct device *d, bool under_way)
{
    if (!d)
        return;
    if (!under_way)
        drain(d);
    under_way = cuda_outcome(NULL) < 0 || under_way;
    if (!comm_destroy(d->comm, under_way)) {
        free(d->on_host);
        free(d); /* NCCL may still use the device's memory */
        return;
    }
    resources_free(&d->memory);
    free(d->on_host);
    free(d);
}

/* Joins the ranks; NCCL connects them in the first collective. */
static int join(struct device *d, int rc, struct ddp_err *err)
{
    if (d->size == 1)
        return rc;
    d->comm = comm_create(d->job.group, &d->index, 1, rc, err);
    if (!d->comm)
        return -1;
    cuda_doing("the first sum");
    comm_all_reduce(d->comm, 0, d->parts, CUDA_PARTS, DDP_F64, d->stream);
    drain(d);
    return cuda_outcome(err);
}

static struct device *cuda_open(const struct device_job *job, struct ddp_err *err)
{
    struct device *d = xcalloc(1, sizeof *d);
    d->job = *job;
    d->caller = job->options->cuda_stream;
    d->shard = !job->options->replicated;
    d->timeout_ms = ddp_group_timeout(job->group);
    d->size = ddp_group_size(job->group);
    if (join(d, make(d, err), err) == 0)
        return d;
    cuda_close(d, true);
    return NULL;
}

static void cuda_blocks(const struct device *d, float **weights, float **grads)
{
    *weights = d->weights;
    *grads = d->grads;
}

/* ---- copies ---- */

/* To the host, with `down`, or from it. */
static void copy(struct device *d, bool down, float *host, float *device, size_t floats)
{
    CUDA(cudaMemcpyAsync(
        down ? host : device, down ? device : host, floats * sizeof(float),
        down ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice, d->stream));
}

/* This rank's pieces of the states: on the host of whole ones, unless they are shared. */
static void copy_states(struct device *d, bool down)
{
    const struct optim *o = d->job.optim;
    for (int k = 0; k < OPTIM_STATES; k++) {
        for (size_t i = 0; i < d->job.npieces && d->states[k]; i++) {
            const struct rank_piece *p = &d->job.pieces[i];
            copy(d, down, o->states[k] + (o->shared ? p->start : p->at.offset),
                 d->states[k] + p->start, p->at.count);
        }
    }
}

/* ---- a step ---- */

static int cuda_take(struct device *d, size_t i, float by, struct ddp_err *err)
{
    const float *own = d->job.params[i].grad;
    float *to = d->grads + d->job.blocks[i].offset;
    follow_caller(d, "a gradient");
    cuda_scale(own ? own : to, (int64_t)d->job.params[i].count, by, to, d->stream);
    return cuda_outcome(err);
}

/* Reduces the buckets from this offset on that have not been yet. */
static void reduce_from(struct device *d, size_t offset)
{
    size_t final = bucket_final(d->job.buckets, d->job.nbuckets, d->reduced, offset);
    for (; d->reduced < final; d->reduced++) {
        struct bucket b = d->job.buckets[d->reduced];
        float *g = d->grads + b.offset;
        if (d->comm && d->shard)
            comm_reduce_scatter(d->comm, 0, g, b.count / (size_t)d->size, d->stream);
        else if (d->comm)
            comm_all_reduce(d->comm, 0, g, b.count, DDP_F32, d->stream);
    }
}

static int cuda_reduce(struct device *d, const struct param *block, struct ddp_err *err)
{
    reduce_from(d, block->offset);
    return cuda_outcome(err);
}

/* An idle rank takes part in the reductions with zeros, in their order. */
static int cuda_begin(struct device *d, bool idle, struct ddp_err *err)
{
    cuda_doing("a step");
    d->reduced = 0;
    if (!d->begun) /* the host may have loaded them */
        copy_states(d, false);
    d->begun = true;
    if (d->steps >= SLOTS)
        comm_await(d->comm, d->done[d->steps % SLOTS], d->timeout_ms);
    if (idle) {
        CUDA(cudaMemsetAsync(d->grads, 0, d->job.floats * sizeof(float), d->stream));
        reduce_from(d, 0);
    }
    return cuda_outcome(err);
}

static void tell(struct device *d, const struct step_rule *how)
{
    struct told *t = d->sent[d->steps % SLOTS];
    *t = (struct told){.step = {.lr = how->lr},
                       .scaler = {.scale = 1 / how->by},
                       .verdict = {.scale = how->by},
                       .updates = d->job.optim->counts.steps};
    CUDA(cudaMemcpyAsync(d->told, t, sizeof *t, cudaMemcpyHostToDevice, d->stream));
}

/* The norm of all ranks' pieces, which changes the scale. */
static void clip(struct device *d, double most)
{
    struct told *t = d->told;
    for (size_t i = 0; i < d->job.npieces; i++)
        cuda_squares(d->grads + d->job.pieces[i].at.offset,
                     (int64_t)d->job.pieces[i].at.count, i > 0, d->parts, d->stream);
    if (d->comm && d->shard)
        comm_all_reduce(d->comm, 0, d->parts, CUDA_PARTS, DDP_F64, d->stream);
    cuda_judge(d->parts, 1, (float)most, &t->scaler, &t->verdict, d->stream);
    CUDA(cudaMemcpyAsync(d->verdict, &t->verdict, sizeof *d->verdict,
                         cudaMemcpyDeviceToHost, d->stream));
}

static void optimise(struct device *d)
{
    struct cuda_update u = {.w = d->weights,
                            .g = d->grads,
                            .borders = d->borders,
                            .updates = &d->told->updates,
                            .s = &d->told->step,
                            .verdict = &d->told->verdict};
    memcpy(u.states, d->states, sizeof u.states);
    for (size_t i = 0; i < d->job.npieces; i++) {
        const struct rank_piece *p = &d->job.pieces[i];
        cuda_optimise(&u, d->job.optim, p->at.offset, p->at.count, p->start, d->stream);
    }
}

/* Copies the block to the caller's weights, or from them. */
static void copy_own(struct device *d, bool out)
{
    for (size_t i = 0; i < d->job.n; i++) {
        float *own = d->job.params[i].weight;
        float *ours = d->weights + d->job.blocks[i].offset;
        if (own)
            CUDA(cudaMemcpyAsync(out ? own : ours, out ? ours : own,
                                 d->job.params[i].count * sizeof *own,
                                 cudaMemcpyDeviceToDevice, d->stream));
    }
}

static int cuda_step(struct device *d, const struct step_rule *how, double *norm,
                     struct ddp_err *err)
{
    cudaEvent_t done = d->done[d->steps % SLOTS];
    bool normed = how && how->clip_norm > 0;
    *norm = 0;
    cuda_doing("a step");
    if (!how) {
        stream_follow(d->caller, d->stream, d->now);
        return cuda_outcome(err);
    }
    tell(d, how);
    if (normed)
        clip(d, how->clip_norm);
    optimise(d);
    if (d->comm && d->shard)
        comm_gather_buckets(d->comm, 0, d->weights, 0, d->job.buckets, d->job.nbuckets,
                            d->stream);
    copy_own(d, true);
    stream_follow(d->caller, d->stream, done);
    d->steps++;
    if (normed)
        comm_await(d->comm, done, d->timeout_ms);
    TRY(cuda_outcome(err));
    if (normed) /* if it is not finite, no weight has changed */
        *norm = d->verdict->norm;
    d->job.optim->counts.steps += isfinite(*norm) != 0;
    return 0;
}

/* ---- the whole block ---- */

static float *cuda_fetch(struct device *d, bool states, struct ddp_err *err)
{
    d->on_host = scratch(d->job.floats);
    follow_caller(d, "copying the state");
    drain(d); /* a copy to memory that is not pinned waits without a deadline */
    copy(d, true, d->on_host, d->weights, d->job.floats);
    if (states && d->begun)
        copy_states(d, true);
    drain(d);
    return cuda_outcome(err) == 0 ? d->on_host : NULL;
}

static int cuda_give_back(struct device *d, bool changed, struct ddp_err *err)
{
    if (changed) {
        follow_caller(d, "copying the state");
        drain(d);
        copy(d, false, d->on_host, d->weights, d->job.floats);
        copy_own(d, true);
        drain(d);
        TRY(cuda_outcome(err)); /* else it may still be read */
    }
    free(d->on_host);
    d->on_host = NULL;
    return 0;
}

static int cuda_share(struct device *d, struct ddp_err *err)
{
    TRY(ddp_barrier(d->job.group, err)); /* names a rank that calls something else */
    follow_caller(d, "sharing the weights");
    copy_own(d, false);
    if (d->comm)
        comm_broadcast(d->comm, 0, d->weights, d->job.floats, d->stream);
    copy_own(d, true);
    drain(d);
    return cuda_outcome(err);
}

__attribute__((visibility("default"))) extern const struct device_type ddp_device;
const struct device_type ddp_device = {
    .open = cuda_open,
    .close = cuda_close,
    .blocks = cuda_blocks,
    .begin = cuda_begin,
    .take = cuda_take,
    .reduce = cuda_reduce,
    .step = cuda_step,
    .share = cuda_share,
    .fetch = cuda_fetch,
    .give_back = cuda_give_back,
};
