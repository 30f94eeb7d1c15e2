/* worker/cuda/setup.c - see engine_impl.h: allocates and frees everything
 *
 * The data set is kept in the device's memory if it takes less than half of what is
 * free. Otherwise each batch is gathered on the host, in one of two pinned slots, and
 * copied while the previous step runs.
 */
#include "worker/cuda/engine_impl.h"

#include "common/err.h"
#include "common/mem.h"
#include "worker/gpu/libnccl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- a stage ---- */

/* Stages on one device share the stream of the reductions, as they share NCCL's
 * communicator. Its kernels have priority: they need few multiprocessors, and the other
 * ranks wait for them. */
static void make_streams(struct stage *s)
{
    cudaEvent_t *events[] = {&s->ready, &s->summed, &s->left, &s->sets[0].sent,
                             &s->sets[1].sent};
    cuda_doing("cannot use the GPU");
    s->main = stream_make(s->memory, false);
    s->away = stream_make(s->memory, false);
    s->sums =
        s->lane == s->index ? stream_make(s->memory, true) : s->e->stages[s->lane].sums;
    for (size_t i = 0; i < ARRAY_LEN(events); i++)
        *events[i] = event_make(s->memory, false);
}

void engine_arrive(struct engine *e)
{
    for (EACH_STAGE_BACK(s, e)) {
        stage_enter(s);
        CUDA(cudaDeviceSynchronize());
    }
}

static void make_blocks(struct stage *s)
{
    const struct engine_job *job = &s->e->job;
    struct resources *m = s->memory;
    size_t bytes = (s->part.count + s->part.tied) * sizeof(float);
    size_t stages = (size_t)s->e->nstages;
    size_t in = sizeof(struct cuda_step) + most_samples(s->e) * sizeof(uint32_t);
    size_t targets = (size_t)s->e->max_micro * target_bytes(s->e);
    s->weights = device_alloc(m, "weights", bytes);
    s->verdict = device_alloc(m, "gradients", sizeof *s->verdict + bytes);
    s->grads = (float *)(s->verdict + 1);
    s->updates = device_alloc(m, "steps", sizeof *s->updates);
    s->parts = device_alloc(m, "steps", stages * CUDA_PARTS * sizeof *s->parts);
    if (job->how.accumulate * s->e->micro > 1)
        s->extra = device_alloc(m, "gradients", bytes);
    s->in = device_alloc(m, "steps", in);
    s->result = device_alloc(m, "steps", sizeof *s->result);
    if (job->how.precision == PRECISION_FP16)
        s->scaler = device_alloc(m, "steps", sizeof *s->scaler);
    for (int k = 0; k < s->e->nstages; k++)
        s->sets[k].t = device_alloc(m, "steps", targets);
    s->borders = optim_alloc(m, job->optim, sums_state_floats(s), s->states);
    float one = 1; /* used unless gradients are clipped */
    CUDA(cudaMemcpy(&s->verdict->scale, &one, sizeof one, cudaMemcpyHostToDevice));
}

static void make_layers(struct stage *s)
{
    struct engine *e = s->e;
    const struct engine_job *job = &e->job;
    struct layers_settings settings = {.from = s->from,
                                       .to = s->to,
                                       .max_batch = e->max_micro,
                                       .dropout = job->how.dropout,
                                       .sum = engine_shares_norms(job) ? sums_norm : NULL,
                                       .ready = sums_ready,
                                       .done = stage_put_layer,
                                       .arg = s,
                                       .precision = job->how.precision,
                                       .deterministic = job->how.deterministic};
    memcpy(settings.where, s->where, sizeof settings.where);
    for (int k = 0; k < e->nstages; k++) {
        struct set *set = &s->sets[k];
        set->net =
            k == 0 ? layers_create(job->model, settings, s->weights, s->memory, s->main)
                   : layers_create_view(s->sets[0].net, s->memory);
    }
}

/* Only for stages that cannot access each other's memory. */
static void make_mail(struct engine *e)
{
    struct resources *memory = first_of(e)->memory;
    if (!e->far)
        return;
    e->mail =
        pinned_alloc(memory, sizeof *e->mail + last_of(e)->part.tied * sizeof(float));
    for (int i = 0; i < e->nstages * e->nstages; i++)
        e->stages[i / e->nstages].sets[i % e->nstages].box =
            pinned_alloc(memory, stages_box_bytes(e));
}

/* ---- data ---- */

static size_t part_bytes(const struct engine *e, const struct samples *part)
{
    return part->n * (input_bytes(e) + target_bytes(e));
}

static void upload_part(struct engine *e, const struct samples *part, struct resident *r)
{
    struct resources *memory = first_of(e)->memory;
    r->x = device_copy(memory, "the data set", part->n * input_bytes(e), inputs_of(part));
    r->t = device_copy(memory, "the data set", part->n * target_bytes(e),
                       targets_of(e, part));
    engine_arrive(e);
    stage_enter(first_of(e));
}

/* DDP_GPU_DATA=host keeps the data set on the host, whatever its size. Tokens are read
 * from their file in each step. */
static void place_data(struct engine *e)
{
    size_t left = 0, all = 0;
    const struct dataset *d = e->job.data;
    const char *wish = getenv("DDP_GPU_DATA");
    if (d->train.pixels)
        e->as_float =
            device_copy(first_of(e)->memory, "steps", sizeof d->as_float, d->as_float);
    cuda_doing("how much memory is free");
    CUDA(cudaMemGetInfo(&left, &all));
    e->resident = part_bytes(e, &d->train) + part_bytes(e, &d->test) < left / 2 &&
                  !has_tokens(e) && !(wish && strcmp(wish, "host") == 0);
    if (!e->resident)
        return;
    upload_part(e, &d->train, &e->train);
    upload_part(e, &d->test, &e->test);
}

static void make_slots(struct engine *e)
{
    size_t batch = most_samples(e), x = input_bytes(e), t = target_bytes(e);
    struct resources *memory = first_of(e)->memory;
    bool timed = e->job.trace && !e->resident;
    for (int i = 0; i < SLOTS; i++) {
        struct slot *s = &e->slots[i];
        s->in = pinned_alloc(memory, sizeof *s->in + batch * sizeof(uint32_t));
        s->result = pinned_alloc(memory, sizeof *s->result);
        if (!e->resident) {
            s->bytes = pinned_alloc(memory, batch * (x + t));
            s->staged.x = device_alloc(memory, "batches", batch * x);
            s->staged.t = device_alloc(memory, "batches", batch * t);
        }
        s->left = timed ? event_make(memory, true) : NULL;
        s->arrived = event_make(memory, timed);
        s->done = event_make(memory, false);
    }
}

/* The part of the setup that needs no other rank. */
static void prepare(struct engine *e)
{
    sums_plan(e);
    for (EACH_STAGE(s, e)) {
        stage_enter(s);
        make_streams(s);
        make_blocks(s);
        make_layers(s);
    }
    stage_enter(first_of(e));
    e->copies = stream_make(first_of(e)->memory, false);
    place_data(e);
    make_slots(e);
    make_mail(e);
    engine_arrive(e);
}

static void free_devices(struct engine *e)
{
    for (EACH_STAGE(s, e)) {
        cudaSetDevice(s->device);
        resources_free(&e->memories[s->index]);
    }
}

static struct engine *engine_new(const struct engine_job *job)
{
    struct engine *e = xcalloc(1, sizeof *e);
    e->job = *job;
    e->rank = ddp_group_rank(job->group);
    e->size = ddp_group_size(job->group);
    e->nstages = job->how.stages;
    for (EACH_STAGE(s, e)) {
        s->e = e;
        s->index = (int)(s - e->stages);
        if (e->nstages > 1)
            snprintf(s->where, sizeof s->where, ", stage %d", s->index + 1);
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
        struct engine *trial = engine_new(&e->job);
        trial->job.how.batch_size = batch /= 2;
        stages_place_as(trial, e);
        prepare(trial);
        fits = cuda_outcome(NULL) == 0;
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
             e->comm ? nccl_api.name : "");
    if (e->nstages > 1)
        stages_describe(e);
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
    free(e->tuner.choices);
    free(e->tuned);
    free(e->text);
    for (EACH_STAGE_BACK(s, e)) {
        cudaSetDevice(s->device);
        for (int k = PIPELINE_STAGES - 1; k >= 0; k--)
            layers_destroy(s->sets[k].net);
        free(s->pieces);
    }
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
    stage_enter(first_of(e));
    return e->comm ? cuda_outcome(err) : -1;
}

struct engine *engine_open(const struct engine_job *job, struct ddp_err *err)
{
    struct engine *e = engine_new(job);
    int rc = stages_place(e, err);
    if (rc == 0) {
        prepare(e);
        rc = cuda_outcome(err);
    }
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
