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
#include "worker/ddp/device.h"
#include "worker/kernels/scratch.h"

#include "common/err.h"
#include "common/mem.h"

#include <math.h>
#include <stdlib.h>

enum { SLOTS = 2 };

static const char *const what = "a step";

/* What the kernels of a step read, in device memory. */
struct told {
    struct cuda_step step;
    struct cuda_scaler scaler; /* gradients are multiplied by the samples of all ranks */
    struct cuda_head head;
    float scale;      /* what the update multiplies them by */
    uint64_t updates; /* before this one */
};

/* What the norm is computed from. */
struct squares {
    double parts[CUDA_PARTS];
    struct cuda_head head;
};

struct device {
    struct device_job job;
    int index, size;
    bool shard;
    int64_t timeout_ms; /* of each wait */
    struct comm *comm;  /* owned; NULL: one rank */
    struct device_memory memory;
    float *weights, *grads, *states[OPTIM_STATES];
    float *on_host;  /* owned: of cuda_fetch(), until cuda_forget() */
    bool begun;      /* the states are on the device */
    size_t *borders; /* the optimiser's */
    double *parts;
    struct told *told, *sent[SLOTS]; /* sent: pinned */
    struct squares *squares;         /* pinned */
    cudaStream_t stream, caller;
    cudaEvent_t now, done[SLOTS]; /* done: a slot's last step */
    size_t reduced;               /* buckets */
    uint64_t steps;
};

/* Waits for all that is on the stream. */
static int drain(struct device *d, const char *doing, struct ddp_err *err)
{
    TRY(check_cuda(cudaEventRecord(d->now, d->stream), doing, err));
    return comm_await(d->comm, d->now, d->timeout_ms, doing, err);
}

/* ---- making ---- */

static int check_memory(const struct device *d, const float *at, const char *kind,
                        size_t i, struct ddp_err *err)
{
    struct cudaPointerAttributes a;
    if (!at)
        return 0;
    TRY(check_cuda(cudaPointerGetAttributes(&a, at), "where parameters are", err));
    if (a.type == cudaMemoryTypeManaged ||
        (a.type == cudaMemoryTypeDevice && a.device == d->index))
        return 0;
    return err_set(
        err,
        "the %s of parameter %zu are not in the memory of GPU %d, which is the "
        "current device",
        kind, i, d->index);
}

static int check_params(const struct device *d, struct ddp_err *err)
{
    for (size_t i = 0; i < d->job.n; i++) {
        TRY(check_memory(d, d->job.params[i].weight, "weights", i, err));
        TRY(check_memory(d, d->job.params[i].grad, "gradients", i, err));
    }
    return 0;
}

static int allocate(struct device *d, struct ddp_err *err)
{
    struct device_memory *m = &d->memory;
    const struct optim *o = d->job.optim;
    const struct rank_piece *last = &d->job.pieces[d->job.npieces - 1];
    size_t block = d->job.floats * sizeof(float), mine = last->start + last->at.count;
    TRY(device_alloc(m, "weights", block, &d->weights, err));
    TRY(device_alloc(m, "gradients", block, &d->grads, err));
    for (int k = 0; k < OPTIM_STATES; k++)
        if (o->states[k])
            TRY(device_alloc(m, "the optimiser", mine * sizeof(float), &d->states[k],
                             err));
    if (o->nborders > 0) {
        size_t borders = o->nborders * sizeof *o->borders;
        TRY(device_alloc(m, "the optimiser", borders, &d->borders, err));
        TRY(check_cuda(
            cudaMemcpy(d->borders, o->borders, borders, cudaMemcpyHostToDevice),
            "the optimiser", err));
    }
    TRY(device_alloc(m, "a step", CUDA_PARTS * sizeof *d->parts, &d->parts, err));
    TRY(device_alloc(m, "a step", sizeof *d->told, &d->told, err));
    for (int i = 0; i < SLOTS; i++)
        TRY(pinned_alloc(sizeof *d->sent[i], &d->sent[i], err));
    return pinned_alloc(sizeof *d->squares, &d->squares, err);
}

static int make_stream(struct device *d, struct ddp_err *err)
{
    cudaEvent_t *events[] = {&d->now, &d->done[0], &d->done[1]};
    int usual, first;
    TRY(check_cuda(cudaDeviceGetStreamPriorityRange(&usual, &first), what, err));
    TRY(check_cuda(cudaStreamCreateWithPriority(&d->stream, cudaStreamNonBlocking, first),
                   what, err));
    for (size_t i = 0; i < ARRAY_LEN(events); i++)
        TRY(check_cuda(cudaEventCreateWithFlags(events[i], cudaEventDisableTiming), what,
                       err));
    return 0;
}

static int make(struct device *d, struct ddp_err *err)
{
    TRY(check_cuda(cudaGetDevice(&d->index), "no GPU", err));
    d->memory.device = d->index;
    TRY(check_params(d, err));
    TRY(make_stream(d, err));
    TRY(allocate(d, err));
    /* what was set to zero is not on our stream */
    return check_cuda(cudaDeviceSynchronize(), "memory", err);
}

static void cuda_close(struct device *d, bool under_way)
{
    struct ddp_err ignored;
    if (!d)
        return;
    under_way = under_way || drain(d, what, &ignored) < 0;
    if (!comm_destroy(d->comm, under_way)) {
        free(d->on_host);
        free(d); /* NCCL may still use the device's memory */
        return;
    }
    device_free(&d->memory);
    for (int i = 0; i < SLOTS; i++) {
        cudaFreeHost(d->sent[i]);
        if (d->done[i])
            cudaEventDestroy(d->done[i]);
    }
    cudaFreeHost(d->squares);
    if (d->now)
        cudaEventDestroy(d->now);
    if (d->stream)
        cudaStreamDestroy(d->stream);
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
    TRY(comm_all_reduce(d->comm, 0, d->parts, CUDA_PARTS, DDP_F64, d->stream, err));
    return drain(d, "the first sum", err);
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

static float *cuda_weight(const struct device *d, size_t offset)
{
    return d->weights + offset;
}

static float *cuda_grad(const struct device *d, size_t offset)
{
    return d->grads + offset;
}

/* ---- copies ---- */

/* To the host, with `down`, or from it. */
static int copy(struct device *d, bool down, float *host, float *device, size_t floats,
                struct ddp_err *err)
{
    return check_cuda(
        cudaMemcpyAsync(
            down ? host : device, down ? device : host, floats * sizeof(float),
            down ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice, d->stream),
        "copying the state", err);
}

/* This rank's pieces of the states: on the host of whole ones, unless they are shared. */
static int copy_states(struct device *d, bool down, struct ddp_err *err)
{
    const struct optim *o = d->job.optim;
    for (int k = 0; k < OPTIM_STATES; k++) {
        for (size_t i = 0; i < d->job.npieces && d->states[k]; i++) {
            const struct rank_piece *p = &d->job.pieces[i];
            TRY(copy(d, down, o->states[k] + (o->shared ? p->start : p->at.offset),
                     d->states[k] + p->start, p->at.count, err));
        }
    }
    return 0;
}

/* ---- a step ---- */

static int cuda_take(struct device *d, size_t i, float by, struct ddp_err *err)
{
    const float *own = d->job.params[i].grad;
    float *to = d->grads + d->job.blocks[i].offset;
    TRY(stream_follow(d->stream, d->caller, d->now, what, err));
    cuda_scale(own ? own : to, (int64_t)d->job.params[i].count, by, to, d->stream);
    return check_launches("a gradient", err);
}

static int reduce(struct device *d, struct bucket b, struct ddp_err *err)
{
    float *g = d->grads + b.offset;
    if (!d->comm)
        return 0;
    return d->shard ? comm_reduce_scatter(d->comm, 0, g, b.count / (size_t)d->size,
                                          d->stream, err)
                    : comm_all_reduce(d->comm, 0, g, b.count, DDP_F32, d->stream, err);
}

static int reduce_from(struct device *d, size_t offset, struct ddp_err *err)
{
    size_t final = bucket_final(d->job.buckets, d->job.nbuckets, d->reduced, offset);
    while (d->reduced < final)
        TRY(reduce(d, d->job.buckets[d->reduced++], err));
    return 0;
}

static int cuda_reduce(struct device *d, const struct param *block, struct ddp_err *err)
{
    return reduce_from(d, block->offset, err);
}

/* An idle rank takes part in the reductions with zeros, in their order. */
static int cuda_begin(struct device *d, bool idle, struct ddp_err *err)
{
    d->reduced = 0;
    if (!d->begun) /* the host may have loaded them */
        TRY(copy_states(d, false, err));
    d->begun = true;
    if (d->steps >= SLOTS)
        TRY(comm_await(d->comm, d->done[d->steps % SLOTS], d->timeout_ms, what, err));
    if (!idle)
        return 0;
    TRY(check_cuda(cudaMemsetAsync(d->grads, 0, d->job.floats * sizeof(float), d->stream),
                   what, err));
    return reduce_from(d, 0, err);
}

/* By the group, which sees a rank that has died. */
static int cuda_sum_numbers(struct device *d, struct step_sums *sums, struct ddp_err *err)
{
    return ddp_all_reduce(d->job.group, sums, sizeof *sums / sizeof(float), DDP_F32,
                          DDP_SUM, err);
}

static int tell(struct device *d, const struct step_rule *how, struct ddp_err *err)
{
    struct told *t = d->sent[d->steps % SLOTS];
    *t = (struct told){.step = {.lr = how->lr},
                       .scaler = {.scale = 1 / how->by},
                       .scale = how->by,
                       .updates = d->job.optim->counts.steps};
    return check_cuda(
        cudaMemcpyAsync(d->told, t, sizeof *t, cudaMemcpyHostToDevice, d->stream), what,
        err);
}

/* The norm of all ranks' pieces, which changes the scale. */
static int clip(struct device *d, double most, struct ddp_err *err)
{
    struct told *t = d->told;
    for (size_t i = 0; i < d->job.npieces; i++)
        cuda_squares(d->grads + d->job.pieces[i].at.offset,
                     (int64_t)d->job.pieces[i].at.count, i > 0, d->parts, d->stream);
    if (d->comm && d->shard)
        TRY(comm_all_reduce(d->comm, 0, d->parts, CUDA_PARTS, DDP_F64, d->stream, err));
    cuda_judge(d->parts, 1, (float)most, &t->scaler, &t->head, &t->scale, d->stream);
    TRY(check_cuda(cudaMemcpyAsync(d->squares->parts, d->parts, sizeof d->squares->parts,
                                   cudaMemcpyDeviceToHost, d->stream),
                   what, err));
    return check_cuda(cudaMemcpyAsync(&d->squares->head, &t->head, sizeof t->head,
                                      cudaMemcpyDeviceToHost, d->stream),
                      what, err);
}

static void optimise(struct device *d)
{
    const struct optim *o = d->job.optim;
    for (size_t i = 0; i < d->job.npieces; i++) {
        struct bucket p = d->job.pieces[i].at;
        struct cuda_update u = {.w = d->weights + p.offset,
                                .g = d->grads + p.offset,
                                .nearer = optim_nearer(o),
                                .n = (int64_t)p.count,
                                .at = p.offset,
                                .nborders = o->nborders,
                                .borders = d->borders,
                                .scale = &d->told->scale,
                                .updates = &d->told->updates,
                                .s = &d->told->step,
                                .head = &d->told->head};
        for (int k = 0; k < OPTIM_STATES; k++)
            u.states[k] = d->states[k] ? d->states[k] + d->job.pieces[i].start : NULL;
        cuda_optimise(&u, o, d->stream);
    }
}

static int gather(struct device *d, struct ddp_err *err)
{
    if (!d->comm || !d->shard)
        return 0;
    TRY(comm_begin(d->comm, err));
    for (size_t i = 0; i < d->job.nbuckets; i++) {
        struct bucket b = d->job.buckets[i];
        TRY(comm_all_gather(d->comm, 0, d->weights + b.offset, b.count / (size_t)d->size,
                            d->stream, err));
    }
    return comm_end(d->comm, err);
}

/* Copies the block to the caller's weights, or from them. */
static int copy_own(struct device *d, bool out, struct ddp_err *err)
{
    for (size_t i = 0; i < d->job.n; i++) {
        float *own = d->job.params[i].weight;
        float *ours = d->weights + d->job.blocks[i].offset;
        if (own)
            TRY(check_cuda(cudaMemcpyAsync(out ? own : ours, out ? ours : own,
                                           d->job.params[i].count * sizeof *own,
                                           cudaMemcpyDeviceToDevice, d->stream),
                           "copying weights", err));
    }
    return 0;
}

/* As the device decided: it has changed no weight if the norm is not finite. */
static double norm_of(const struct device *d, double by)
{
    double sum = 0;
    for (int i = 0; i < CUDA_PARTS; i++)
        sum += d->squares->parts[i];
    double norm = sqrt(sum) * by;
    bool skipped = d->squares->head.sums.skipped > 0 || d->squares->head.sums.bad > 0;
    return skipped && isfinite(norm) ? (double)INFINITY : norm;
}

static int cuda_step(struct device *d, const struct step_rule *how, double *norm,
                     struct ddp_err *err)
{
    cudaEvent_t done = d->done[d->steps % SLOTS];
    bool normed = how && how->clip_norm > 0;
    *norm = 0;
    if (!how)
        return stream_follow(d->caller, d->stream, d->now, what, err);
    TRY(tell(d, how, err));
    if (normed)
        TRY(clip(d, how->clip_norm, err));
    optimise(d);
    TRY(check_launches("the optimiser", err));
    TRY(gather(d, err));
    TRY(copy_own(d, true, err));
    TRY(stream_follow(d->caller, d->stream, done, what, err));
    d->steps++;
    if (normed) {
        TRY(comm_await(d->comm, done, d->timeout_ms, what, err));
        *norm = norm_of(d, (double)how->by);
    }
    d->job.optim->counts.steps += isfinite(*norm) != 0;
    return 0;
}

/* ---- the whole block ---- */

static float *cuda_fetch(struct device *d, bool states, struct ddp_err *err)
{
    const char *doing = "copying the state";
    d->on_host = scratch(d->job.floats);
    /* a copy to memory that is not pinned waits for the stream, without a deadline */
    bool fine = stream_follow(d->stream, d->caller, d->now, doing, err) == 0 &&
                drain(d, doing, err) == 0 &&
                copy(d, true, d->on_host, d->weights, d->job.floats, err) == 0 &&
                (!states || !d->begun || copy_states(d, true, err) == 0) &&
                drain(d, doing, err) == 0;
    return fine ? d->on_host : NULL;
}

static int cuda_put_back(struct device *d, struct ddp_err *err)
{
    const char *doing = "copying the state";
    TRY(stream_follow(d->stream, d->caller, d->now, doing, err));
    TRY(drain(d, doing, err));
    TRY(copy(d, false, d->on_host, d->weights, d->job.floats, err));
    TRY(copy_own(d, true, err));
    return drain(d, doing, err);
}

static void cuda_forget(struct device *d)
{
    free(d->on_host);
    d->on_host = NULL;
}

static int cuda_share(struct device *d, struct ddp_err *err)
{
    const char *doing = "sharing the weights";
    TRY(ddp_barrier(d->job.group, err)); /* names a rank that calls something else */
    TRY(stream_follow(d->stream, d->caller, d->now, doing, err));
    TRY(copy_own(d, false, err));
    if (d->comm)
        TRY(comm_broadcast(d->comm, 0, d->weights, d->job.floats, d->stream, err));
    TRY(copy_own(d, true, err));
    return drain(d, doing, err);
}

__attribute__((visibility("default"))) extern const struct device_type ddp_device;
const struct device_type ddp_device = {
    .open = cuda_open,
    .close = cuda_close,
    .weight = cuda_weight,
    .grad = cuda_grad,
    .begin = cuda_begin,
    .take = cuda_take,
    .reduce = cuda_reduce,
    .finish = cuda_sum_numbers,
    .step = cuda_step,
    .share = cuda_share,
    .fetch = cuda_fetch,
    .put_back = cuda_put_back,
    .forget = cuda_forget,
};
