/* worker/cuda/setup.c - see engine_impl.h: allocates and frees everything
 *
 * The data set is kept in the device's memory if it takes less than half of what is
 * free. Otherwise each batch is gathered on the host, in one of two pinned slots, and
 * copied while the previous step runs.
 */
#include "worker/cuda/engine_impl.h"

#include "common/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- a stage ---- */

/* Stages on one device share the stream of the reductions, as they share NCCL's
 * communicator. Its kernels have priority: they need few multiprocessors, and the other
 * ranks wait for them. */
static int make_streams(struct stage *s, struct ddp_err *err)
{
    bool own = s->lane == s->index;
    cudaStream_t *streams[] = {&s->main, &s->away, own ? &s->sums : NULL};
    cudaEvent_t *events[] = {&s->ready, &s->summed, &s->left, &s->sets[0].sent,
                             &s->sets[1].sent};
    int usual, first;
    TRY(check_cuda(cudaDeviceGetStreamPriorityRange(&usual, &first), "cannot use the GPU",
                   err));
    for (size_t i = 0; i < ARRAY_LEN(streams); i++) {
        if (streams[i])
            TRY(check_cuda(
                cudaStreamCreateWithPriority(streams[i], cudaStreamNonBlocking,
                                             streams[i] == &s->sums ? first : usual),
                "cannot use the GPU", err));
    }
    for (size_t i = 0; i < ARRAY_LEN(events); i++) {
        TRY(check_cuda(cudaEventCreateWithFlags(events[i], cudaEventDisableTiming),
                       "cannot use the GPU", err));
    }
    if (!own)
        s->sums = s->e->stages[s->lane].sums;
    return 0;
}

int engine_arrive(struct engine *e, const char *what, struct ddp_err *err)
{
    for (int i = e->nstages - 1; i >= 0; i--) {
        TRY(stage_enter(&e->stages[i], err));
        TRY(check_cuda(cudaDeviceSynchronize(), what, err));
    }
    return 0;
}

static int make_blocks(struct stage *s, struct ddp_err *err)
{
    const struct engine_job *job = &s->e->job;
    struct device_memory *m = s->memory;
    size_t bytes = (s->part.count + s->part.tied) * sizeof(float);
    size_t stages = (size_t)s->e->nstages;
    size_t in = sizeof(struct cuda_step) + most_samples(s->e) * sizeof(uint32_t);
    size_t targets = (size_t)s->e->max_micro * target_bytes(s->e);
    TRY(device_alloc(m, "weights", bytes, &s->weights, err));
    TRY(device_alloc(m, "gradients", VERDICT * sizeof(float) + bytes, &s->block, err));
    TRY(device_alloc(m, "steps", sizeof *s->updates, &s->updates, err));
    TRY(device_alloc(m, "steps", stages * CUDA_PARTS * sizeof *s->parts, &s->parts, err));
    if (job->how.accumulate * s->e->micro > 1)
        TRY(device_alloc(m, "gradients", bytes, &s->extra, err));
    TRY(device_alloc(m, "steps", in, &s->in, err));
    TRY(device_alloc(m, "steps", sizeof *s->result, &s->result, err));
    if (job->how.precision == PRECISION_FP16)
        TRY(device_alloc(m, "steps", sizeof *s->scaler, &s->scaler, err));
    for (int k = 0; k < s->e->nstages; k++)
        TRY(device_alloc(m, "steps", targets, &s->sets[k].t, err));
    s->grads = s->block + VERDICT;
    float one = 1; /* used unless gradients are clipped */
    return check_cuda(cudaMemcpy(scale_of(s), &one, sizeof one, cudaMemcpyHostToDevice),
                      "steps", err);
}

/* Called when this rank's pieces are known. */
static int make_states(struct stage *s, struct ddp_err *err)
{
    const struct optim *o = s->e->job.optim;
    size_t bytes = sums_state_floats(s) * sizeof(float);
    size_t borders = o->nborders * sizeof *o->borders;
    for (int k = 0; k < OPTIM_STATES; k++) {
        if (o->states[k])
            TRY(device_alloc(s->memory, "optimiser", bytes, &s->states[k], err));
    }
    if (borders == 0)
        return 0;
    TRY(device_alloc(s->memory, "optimiser", borders, &s->borders, err));
    return check_cuda(cudaMemcpy(s->borders, o->borders, borders, cudaMemcpyHostToDevice),
                      "optimiser", err);
}

static int make_layers(struct stage *s, struct ddp_err *err)
{
    struct engine *e = s->e;
    const struct engine_job *job = &e->job;
    struct layers_settings settings = {.io = job->data->shape,
                                       .from = s->from,
                                       .to = s->to,
                                       .max_batch = e->max_micro,
                                       .dropout = job->how.dropout,
                                       .sum = engine_shares_norms(job) ? sums_norm : NULL,
                                       .ready = sums_ready,
                                       .done = stage_put_layer,
                                       .arg = s,
                                       .precision = job->how.precision,
                                       .deterministic = job->how.deterministic};
    for (int k = 0; k < e->nstages; k++) {
        struct set *set = &s->sets[k];
        set->net = k == 0 ? layers_create(job->model, settings, s->weights, s->memory,
                                          s->main, err)
                          : layers_create_view(s->sets[0].net, s->memory, err);
        if (!set->net)
            return -1;
    }
    return 0;
}

static int make_stage(struct stage *s, struct ddp_err *err)
{
    TRY(stage_enter(s, err));
    TRY(make_streams(s, err));
    TRY(make_blocks(s, err));
    TRY(make_states(s, err));
    return make_layers(s, err);
}

/* Only for stages that cannot access each other's memory. */
static int make_mail(struct engine *e, struct ddp_err *err)
{
    if (!e->far)
        return 0;
    TRY(pinned_alloc(sizeof *e->mail + last_of(e)->part.tied * sizeof(float), &e->mail,
                     err));
    for (int i = 0; i < e->nstages * e->nstages; i++)
        TRY(pinned_alloc(stages_box_bytes(e),
                         &e->stages[i / e->nstages].sets[i % e->nstages].box, err));
    return 0;
}

/* ---- data ---- */

static int make_pixels(struct engine *e, struct ddp_err *err)
{
    size_t bytes = sizeof e->job.data->as_float;
    if (!e->job.data->train.pixels)
        return 0;
    TRY(device_alloc(first_of(e)->memory, "steps", bytes, &e->as_float, err));
    return check_cuda(
        cudaMemcpy(e->as_float, e->job.data->as_float, bytes, cudaMemcpyHostToDevice),
        "steps", err);
}

static size_t part_bytes(const struct engine *e, const struct samples *part)
{
    return part->n * (input_bytes(e) + target_bytes(e));
}

/* Allocates space for `n` samples on the device. */
static int take_part(struct engine *e, size_t n, const char *what, struct resident *r,
                     struct ddp_err *err)
{
    struct device_memory *memory = first_of(e)->memory;
    TRY(device_alloc(memory, what, n * input_bytes(e), &r->x, err));
    return device_alloc(memory, what, n * target_bytes(e), &r->t, err);
}

static int upload_part(struct engine *e, const struct samples *part, struct resident *r,
                       struct ddp_err *err)
{
    const char *what = "the data set";
    TRY(take_part(e, part->n, what, r, err));
    TRY(check_cuda(cudaMemcpy(r->x, inputs_of(part), part->n * input_bytes(e),
                              cudaMemcpyHostToDevice),
                   what, err));
    TRY(check_cuda(cudaMemcpy(r->t, targets_of(e, part), part->n * target_bytes(e),
                              cudaMemcpyHostToDevice),
                   what, err));
    TRY(engine_arrive(e, what, err));
    return stage_enter(first_of(e), err);
}

/* DDP_GPU_DATA=host keeps the data set on the host, whatever its size. Tokens are read
 * from their file in each step. */
static int place_data(struct engine *e, struct ddp_err *err)
{
    size_t left = 0, all = 0;
    const struct dataset *d = e->job.data;
    const char *wish = getenv("DDP_GPU_DATA");
    TRY(check_cuda(cudaMemGetInfo(&left, &all), "how much memory is free", err));
    e->resident = part_bytes(e, &d->train) + part_bytes(e, &d->test) < left / 2 &&
                  !has_tokens(e) && !(wish && strcmp(wish, "host") == 0);
    if (!e->resident)
        return 0;
    TRY(upload_part(e, &d->train, &e->train, err));
    return upload_part(e, &d->test, &e->test, err);
}

static int make_slots(struct engine *e, struct ddp_err *err)
{
    size_t batch = most_samples(e), sample = input_bytes(e) + target_bytes(e);
    const char *what = "cannot use the GPU";
    bool timed = e->job.trace && !e->resident;
    for (int i = 0; i < SLOTS; i++) {
        struct slot *s = &e->slots[i];
        if (pinned_alloc(sizeof *s->in + batch * sizeof(uint32_t), &s->in, err) < 0 ||
            pinned_alloc(sizeof *s->result, &s->result, err) < 0 ||
            (!e->resident && (pinned_alloc(batch * sample, &s->bytes, err) < 0 ||
                              take_part(e, batch, "batches", &s->staged, err) < 0)))
            return -1;
        if (timed)
            TRY(check_cuda(cudaEventCreate(&s->left), what, err));
        TRY(check_cuda(
            cudaEventCreateWithFlags(&s->arrived,
                                     timed ? cudaEventDefault : cudaEventDisableTiming),
            what, err));
        TRY(check_cuda(cudaEventCreateWithFlags(&s->done, cudaEventDisableTiming), what,
                       err));
    }
    return 0;
}

/* The part of the setup that needs no other rank. */
static int prepare(struct engine *e, struct ddp_err *err)
{
    sums_plan(e);
    for (int i = 0; i < e->nstages; i++)
        TRY(make_stage(&e->stages[i], err));
    TRY(stage_enter(first_of(e), err));
    TRY(check_cuda(cudaStreamCreateWithFlags(&e->copies, cudaStreamNonBlocking),
                   "cannot use the GPU", err));
    TRY(make_pixels(e, err));
    TRY(place_data(e, err));
    TRY(make_slots(e, err));
    TRY(make_mail(e, err));
    return engine_arrive(e, "memory", err);
}

static void free_devices(struct engine *e)
{
    struct ddp_err ignored;
    for (int i = 0; i < e->nstages; i++) {
        stage_enter(&e->stages[i], &ignored);
        device_free(&e->memories[i]);
    }
}

static struct engine *engine_new(const struct engine_job *job)
{
    struct engine *e = xcalloc(1, sizeof *e);
    e->job = *job;
    e->rank = ddp_group_rank(job->group);
    e->size = ddp_group_size(job->group);
    e->nstages = job->how.stages;
    for (int i = 0; i < e->nstages; i++) {
        e->stages[i].e = e;
        e->stages[i].index = i;
    }
    return e;
}

/* After a failed allocation: finds a batch size that fits, halving it each time, for
 * the error. */
static void say_what_fits(struct engine *e, struct ddp_err *err)
{
    int batch = e->job.how.batch_size;
    bool fits = false;
    free_devices(e);
    while (!fits && batch > 1) {
        struct ddp_err ignored;
        struct engine *trial = engine_new(&e->job);
        trial->job.how.batch_size = batch /= 2;
        stages_place_as(trial, e);
        fits = prepare(trial, &ignored) == 0;
        engine_close(trial);
    }
    size_t n = strlen(err->text);
    if (fits)
        snprintf(err->text + n, sizeof err->text - n, "; --batch-size %d fits", batch);
    else
        snprintf(err->text + n, sizeof err->text - n, "; not even --batch-size 1 fits");
}

static void describe(struct engine *e)
{
    static const char *const precisions[] = {
        [PRECISION_FP32] = "fp32 without TF32",
        [PRECISION_BF16] = "bf16 with fp32 master weights",
        [PRECISION_TF32] = "fp32 with TF32",
        [PRECISION_FP16] = "fp16 with fp32 master weights and a scaled loss"};
    double taken = 0;
    for (int i = 0; i < e->nstages; i++)
        taken += (double)device_allocated(&e->memories[i], NULL);
    xappendf(&e->text, ", %s, %.0f MiB%s%s%s", precisions[e->job.how.precision],
             taken / 0x1p20, e->resident ? " with the data" : "", e->comm ? ", " : "",
             e->comm ? comm_version() : "");
    if (e->nstages > 1)
        stages_describe(e);
}

static void close_stage(struct stage *s)
{
    struct ddp_err ignored;
    stage_enter(s, &ignored);
    for (int k = PIPELINE_STAGES - 1; k >= 0; k--) {
        layers_destroy(s->sets[k].net);
        cudaFreeHost(s->sets[k].box);
    }
    cudaEvent_t events[] = {s->ready,        s->summed,       s->left,
                            s->sets[0].sent, s->sets[1].sent, s->anchor};
    cudaStream_t streams[] = {s->main, s->away, s->lane == s->index ? s->sums : NULL};
    for (size_t i = 0; i < ARRAY_LEN(events); i++) {
        if (events[i])
            cudaEventDestroy(events[i]);
    }
    for (size_t i = 0; i < ARRAY_LEN(streams); i++) {
        if (streams[i])
            cudaStreamDestroy(streams[i]);
    }
    free(s->pieces);
}

void engine_close(struct engine *e)
{
    if (!e)
        return;
    bool under_way = e->given != e->taken;
    if (under_way)
        comm_give_up(e->comm);
    for (int i = 0; i < e->ngraphs; i++) /* first: they refer to the communicator */
        engine_forget(e, &e->graphs[i]);
    if (!comm_destroy(e->comm, under_way))
        return; /* memory in use by a hung collective is left to the end of the process */
    for (int i = 0; i < SLOTS; i++) {
        struct slot *s = &e->slots[i];
        cudaFreeHost(s->in);
        cudaFreeHost(s->result);
        cudaFreeHost(s->bytes);
        if (s->left)
            cudaEventDestroy(s->left);
        if (s->arrived)
            cudaEventDestroy(s->arrived);
        if (s->done)
            cudaEventDestroy(s->done);
    }
    free(e->tuner.choices);
    free(e->tuned);
    free(e->text);
    cudaFreeHost(e->mail);
    if (e->copies)
        cudaStreamDestroy(e->copies);
    for (int i = e->nstages - 1; i >= 0; i--)
        close_stage(&e->stages[i]);
    free_devices(e);
    free(e->buckets);
    free(e);
}

/* The collective part of the setup. */
static int join(struct engine *e, int rc, struct ddp_err *err)
{
    int devices[PIPELINE_STAGES], lanes = last_of(e)->lane + 1;
    for (int i = 0; i < lanes; i++)
        devices[i] = e->stages[i].device;
    e->comm = comm_create(e->job.group, devices, lanes, rc, err);
    return e->comm ? stage_enter(first_of(e), err) : -1;
}

struct engine *engine_open(const struct engine_job *job, struct ddp_err *err)
{
    struct engine *e = engine_new(job);
    int rc = stages_place(e, err);
    if (rc == 0)
        rc = prepare(e, err);
    if (rc < 0 && (e->memories[0].full || e->memories[1].full))
        say_what_fits(e, err);
    if (e->size > 1)
        rc = join(e, rc, err);
    if (rc < 0) {
        engine_close(e);
        return NULL;
    }
    describe(e);
    return e;
}
