/* worker/ddp/device_host.c - see device.h: parameters in host memory, by the reducer */
#include "worker/ddp/device.h"

#include "common/err.h"
#include "common/mem.h"

#include <stdlib.h>
#include <string.h>

struct device {
    struct device_job job;
    float *weights; /* in the group's arena, as the gradients */
};

static struct device *host_open(const struct device_job *job, struct ddp_err *err)
{
    float *weights = ddp_arena_alloc(job->group, job->floats * sizeof *weights, err);
    if (parallel_refuse(job->group, weights ? 0 : -1, err) < 0)
        return NULL;
    struct device *d = xcalloc(1, sizeof *d);
    *d = (struct device){*job, weights};
    return d;
}

static void host_close(struct device *d, bool under_way)
{
    free(d);
}

static void host_blocks(const struct device *d, float **weights, float **grads)
{
    *weights = d->weights;
    *grads = reducer_grads(d->job.reducer);
}

/* Copies to the arrays of the caller, or from them. */
static void copy_weights(const struct device *d, bool out)
{
    for (size_t i = 0; i < d->job.n; i++) {
        float *own = d->job.params[i].weight;
        float *ours = d->weights + d->job.blocks[i].offset;
        if (own)
            memcpy(out ? own : ours, out ? ours : own,
                   d->job.params[i].count * sizeof *own);
    }
}

static int host_begin(struct device *d, bool idle, struct ddp_err *err)
{
    return reducer_begin(d->job.reducer, idle, err);
}

static int host_take(struct device *d, size_t i, float by, struct ddp_err *err)
{
    const struct ddp_param *p = &d->job.params[i];
    float *g = reducer_grads(d->job.reducer) + d->job.blocks[i].offset;
    if (p->grad)
        memcpy(g, p->grad, p->count * sizeof *g);
    d->job.optim->kernels->scale(g, (int64_t)p->count, by);
    return 0;
}

static int host_reduce(struct device *d, const struct param *block, struct ddp_err *err)
{
    /* reducer_finish() returns errors */
    reducer_ready(block->offset, block->count, d->job.reducer);
    return 0;
}

static int host_step(struct device *d, const struct step_rule *how, double *norm,
                     struct ddp_err *err)
{
    *norm = 0;
    if (!how)
        return 0;
    TRY(reducer_step(d->job.reducer, d->job.optim, d->weights, how, norm, err));
    copy_weights(d, true);
    return 0;
}

static int host_share(struct device *d, struct ddp_err *err)
{
    copy_weights(d, false);
    TRY(ddp_broadcast(d->job.group, d->weights, d->job.floats, DDP_F32, 0, err));
    copy_weights(d, true);
    return 0;
}

static float *host_fetch(struct device *d, bool states, struct ddp_err *err)
{
    return d->weights;
}

static int host_give_back(struct device *d, bool changed, struct ddp_err *err)
{
    if (changed)
        copy_weights(d, true);
    return 0;
}

const struct device_type device_host = {
    .open = host_open,
    .close = host_close,
    .blocks = host_blocks,
    .begin = host_begin,
    .take = host_take,
    .reduce = host_reduce,
    .step = host_step,
    .share = host_share,
    .fetch = host_fetch,
    .give_back = host_give_back,
};
