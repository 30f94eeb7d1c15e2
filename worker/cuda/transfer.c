/* worker/cuda/transfer.c - see engine_impl.h: copies the model from host to devices
 * and back */
#include "worker/cuda/engine_impl.h"

#include "common/mem.h"
#include "common/scoped.h"

/* False: a failure; the host's memory is as it was. */
static bool move(void *device, void *host, size_t bytes, enum direction way)
{
    return way == TO_DEVICE
               ? CUDA(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice))
               : CUDA(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost));
}

void transfer_buffers(struct engine *e, enum direction way)
{
    float *host = e->job.model->buffer_block;
    for (EACH_STAGE(s, e)) {
        size_t bytes = s->part.buffer_count * sizeof *host;
        if (bytes == 0)
            continue;
        stage_enter(s);
        move(layers_ends(s->sets[0].net).buffers, host + s->part.buffer_offset, bytes,
             way);
    }
    stage_enter(first_of(e));
}

/* The stage's block of weights, or of an optimiser's state, with its order changed. */
static float *turned(const struct stage *s, const float *block)
{
    float *out = xcalloc(s->part.count, sizeof *out);
    layers_turn(s->e->job.model, s->from, s->to, block, out, false);
    return out;
}

static void move_turned(struct stage *s, float *device, float *host, enum direction way)
{
    size_t bytes = s->part.count * sizeof *host;
    OWNED float *ours = way == TO_DEVICE ? turned(s, host) : xcalloc(bytes, 1);
    if (move(device, ours, bytes, way) && way == TO_HOST)
        layers_turn(s->e->job.model, s->from, s->to, ours, host, true);
}

/* Optimiser state k. To the device: this rank's pieces of the host's block. To the
 * host: all of it, gathered in the block of the gradients, which are not needed
 * between steps. */
static void push_state(struct stage *s, int k)
{
    OWNED float *ours = turned(s, s->e->job.optim->states[k] + s->part.offset);
    size_t at = 0;
    for (size_t i = 0; i < s->npieces; at += s->pieces[i++].count)
        move(s->states[k] + at, place_in(s, ours, s->pieces[i].offset),
             s->pieces[i].count * sizeof *ours, TO_DEVICE);
}

static void pull_state(struct stage *s, int k)
{
    struct engine *e = s->e;
    float *whole = e->job.optim->states[k] + s->part.offset;
    size_t at = 0;
    if (!shares_out(e)) {
        move_turned(s, s->states[k], whole, TO_HOST);
        return;
    }
    for (size_t i = 0; i < s->npieces; at += s->pieces[i++].count) {
        const struct piece *p = &s->pieces[i];
        CUDA(cudaMemcpyAsync(place_in(s, s->grads, p->offset), s->states[k] + at,
                             p->count * sizeof(float), cudaMemcpyDeviceToDevice,
                             s->main));
    }
    sums_gather(s, s->grads);
    CUDA(cudaEventRecord(s->summed, s->main));
    comm_await(e->comm, s->summed, e->job.timeout_ms);
    move_turned(s, s->grads, whole, TO_HOST);
}

/* The loss scale of fp16. The host has none before the first step. */
static void transfer_scaler(struct stage *s, enum direction way)
{
    struct optim *o = s->e->job.optim;
    if (o->counts.loss_scale <= 0)
        o->counts.loss_scale = CUDA_FIRST_SCALE;
    struct cuda_scaler scaler = {o->counts.loss_scale, o->counts.good_steps};
    move(s->scaler, &scaler, sizeof scaler, way);
    o->counts.loss_scale = scaler.scale;
    o->counts.good_steps = scaler.good;
}

static void transfer_stage(struct stage *s, enum direction way)
{
    struct optim *o = s->e->job.optim;
    float *weights = s->e->job.model->weights + s->part.offset;
    stage_enter(s);
    move_turned(s, s->weights, weights, way);
    if (s->scaler)
        transfer_scaler(s, way);
    move(s->updates, &o->counts.steps, sizeof o->counts.steps, way);
    for (int k = 0; k < OPTIM_STATES; k++) {
        if (o->states[k])
            (way == TO_DEVICE ? push_state : pull_state)(s, k);
    }
}

void transfer_model(struct engine *e, enum direction way)
{
    cuda_doing("copying the model");
    CUDA(cudaStreamSynchronize(first_of(e)->main));
    for (EACH_STAGE_BACK(s, e))
        transfer_stage(s, way);
    transfer_buffers(e, way);
    engine_arrive(e);
}
