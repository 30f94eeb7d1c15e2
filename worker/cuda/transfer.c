/* worker/cuda/transfer.c - see engine_impl.h: copies the model from host to devices
 * and back */
#include "worker/cuda/engine_impl.h"

#include "common/mem.h"
#include "common/scoped.h"

static const char *const what = "copying the model";

static int move(void *device, void *host, size_t bytes, enum direction way,
                struct ddp_err *err)
{
    cudaError_t rc = way == TO_DEVICE
                         ? cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice)
                         : cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost);
    return check_cuda(rc, what, err);
}

int transfer_buffers(struct engine *e, enum direction way, struct ddp_err *err)
{
    size_t n;
    float *host = model_buffer_block(e->job.model, &n);
    for (int i = 0; i < e->nstages; i++) {
        struct stage *s = &e->stages[i];
        size_t bytes = s->part.buffer_count * sizeof *host;
        if (bytes > 0 && (stage_enter(s, err) < 0 ||
                          move(layers_ends(s->sets[0].net).buffers,
                               host + s->part.buffer_offset, bytes, way, err) < 0))
            return -1;
    }
    return stage_enter(first_of(e), err);
}

/* The stage's block of weights, or of an optimiser's state, with its order changed. */
static float *turned(const struct stage *s, const float *block)
{
    float *out = xcalloc(s->part.count, sizeof *out);
    layers_turn(s->e->job.model, s->from, s->to, block, out, false);
    return out;
}

static int move_turned(struct stage *s, float *device, float *host, enum direction way,
                       struct ddp_err *err)
{
    size_t bytes = s->part.count * sizeof *host;
    OWNED float *ours = way == TO_DEVICE ? turned(s, host) : xcalloc(bytes, 1);
    TRY(move(device, ours, bytes, way, err));
    if (way == TO_HOST)
        layers_turn(s->e->job.model, s->from, s->to, ours, host, true);
    return 0;
}

/* Optimiser state k. To the device: this rank's pieces of the host's block. To the
 * host: all of it, gathered in the block of the gradients, which are not needed
 * between steps. */
static int push_state(struct stage *s, int k, struct ddp_err *err)
{
    OWNED float *ours = turned(s, s->e->job.optim->states[k] + s->part.offset);
    size_t at = 0;
    for (size_t i = 0; i < s->npieces; at += s->pieces[i++].count)
        TRY(move(s->states[k] + at, place_in(s, ours, s->pieces[i].offset),
                 s->pieces[i].count * sizeof *ours, TO_DEVICE, err));
    return 0;
}

static int pull_state(struct stage *s, int k, struct ddp_err *err)
{
    struct engine *e = s->e;
    float *whole = e->job.optim->states[k] + s->part.offset;
    size_t at = 0;
    if (!shares_out(e))
        return move_turned(s, s->states[k], whole, TO_HOST, err);
    for (size_t i = 0; i < s->npieces; at += s->pieces[i++].count) {
        const struct piece *p = &s->pieces[i];
        TRY(check_cuda(cudaMemcpyAsync(place_in(s, s->grads, p->offset),
                                       s->states[k] + at, p->count * sizeof(float),
                                       cudaMemcpyDeviceToDevice, s->main),
                       "copying the optimiser", err));
    }
    TRY(sums_gather(s, s->grads, err));
    TRY(check_cuda(cudaEventRecord(s->summed, s->main), "copying the optimiser", err));
    TRY(comm_await(e->comm, s->summed, e->job.timeout_ms, "gathering the optimiser",
                   err));
    return move_turned(s, s->grads, whole, TO_HOST, err);
}

/* The loss scale of fp16. The host has none before the first step. */
static int transfer_scaler(struct stage *s, enum direction way, struct ddp_err *err)
{
    struct optim *o = s->e->job.optim;
    if (o->counts.loss_scale <= 0)
        o->counts.loss_scale = CUDA_FIRST_SCALE;
    struct cuda_scaler scaler = {o->counts.loss_scale, o->counts.good_steps};
    TRY(move(s->scaler, &scaler, sizeof scaler, way, err));
    o->counts.loss_scale = scaler.scale;
    o->counts.good_steps = scaler.good;
    return 0;
}

static int transfer_stage(struct stage *s, enum direction way, struct ddp_err *err)
{
    struct optim *o = s->e->job.optim;
    float *weights = model_weights(s->e->job.model) + s->part.offset;
    TRY(stage_enter(s, err));
    TRY(move_turned(s, s->weights, weights, way, err));
    if (s->scaler)
        TRY(transfer_scaler(s, way, err));
    TRY(move(s->updates, &o->counts.steps, sizeof o->counts.steps, way, err));
    for (int k = 0; k < OPTIM_STATES; k++) {
        if (o->states[k])
            TRY((way == TO_DEVICE ? push_state : pull_state)(s, k, err));
    }
    return 0;
}

int transfer_model(struct engine *e, enum direction way, struct ddp_err *err)
{
    TRY(check_cuda(cudaStreamSynchronize(first_of(e)->main), what, err));
    for (int i = e->nstages - 1; i >= 0; i--)
        TRY(transfer_stage(&e->stages[i], way, err));
    TRY(transfer_buffers(e, way, err));
    return engine_arrive(e, what, err);
}
