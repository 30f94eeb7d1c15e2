/* worker/cuda/open.c - see engine_impl.h: everything is taken here, and let go
 *
 * The data set lies in the device's memory when it takes less than half of what is free;
 * else each batch is collected on the host, in one of two pinned slots.
 */
#include "worker/cuda/engine_impl.h"

#include "common/mem.h"
#include "worker/cuda/peak.h"
#include "worker/cuda/ranges.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- which device ---- */

static int count_devices(int *n, struct ddp_err *err)
{
    int most = 0, ours = 0;
    cudaError_t rc = cudaGetDeviceCount(n);
    if (rc == cudaSuccess)
        return *n > 0 ? 0 : err_set(err, "no GPU: the driver shows none");
    if (rc != cudaErrorInsufficientDriver || cudaDriverGetVersion(&most) != cudaSuccess ||
        most == 0 || cudaRuntimeGetVersion(&ours) != cudaSuccess)
        return check_cuda(rc, "no GPU", err);
    cudaGetLastError();
    return err_set(err,
                   "the NVIDIA driver here knows CUDA up to %d.%d, this engine is built "
                   "with %d.%d: update the driver, or build with an older toolkit",
                   most / 1000, most % 1000 / 10, ours / 1000, ours % 1000 / 10);
}

int engine_probe(struct ddp_err *err)
{
    int n = 0;
    return count_devices(&n, err);
}

/* A device that would not have us. */
static int say_taken(int device, cudaError_t rc, struct ddp_err *err)
{
    char bus[32] = "?";
    int mode = cudaComputeModeDefault;
    cudaGetLastError();
    cudaDeviceGetPCIBusId(bus, sizeof bus, device);
    cudaDeviceGetAttribute(&mode, cudaDevAttrComputeMode, device);
    if (mode == cudaComputeModeProhibited)
        return err_set(
            err, "GPU %d (%s) is set to take no programs: 'nvidia-smi -c 0' lets them in",
            device, bus);
    if (mode != cudaComputeModeDefault)
        return err_set(err,
                       "GPU %d (%s) is taken, and set to take one program at a time: "
                       "nvidia-smi shows which, 'nvidia-smi -c 0' lets several in",
                       device, bus);
    return err_set(err, "GPU %d (%s): %s: nvidia-smi shows who uses it", device, bus,
                   cudaGetErrorString(rc));
}

static int choose_device(struct engine *e, struct ddp_err *err)
{
    int n = 0;
    struct cudaDeviceProp prop;
    if (count_devices(&n, err) < 0)
        return -1;
    int device = e->job.local_rank % n;
    cudaError_t rc = cudaSetDevice(device);
    if (rc == cudaSuccess)
        rc = cudaFree(NULL); /* older runtimes do not ask the device before */
    if (rc == cudaErrorDevicesUnavailable)
        return say_taken(device, rc, err);
    if (check_cuda(rc, "cannot use the GPU", err) < 0 ||
        check_cuda(cudaGetDeviceProperties(&prop, device), "cannot use the GPU", err) < 0)
        return -1;
    snprintf(e->text, sizeof e->text, "%.100s", prop.name);
    e->peak = peak_of_device(device, e->job.precision);
    return 0;
}

static int make_streams(struct engine *e, struct ddp_err *err)
{
    cudaStream_t *streams[] = {&e->main, &e->sums, &e->copies};
    cudaEvent_t *events[] = {&e->ready, &e->summed};
    for (size_t i = 0; i < ARRAY_LEN(streams); i++) {
        if (check_cuda(cudaStreamCreateWithFlags(streams[i], cudaStreamNonBlocking),
                       "cannot use the GPU", err) < 0)
            return -1;
    }
    for (size_t i = 0; i < ARRAY_LEN(events); i++) {
        if (check_cuda(cudaEventCreateWithFlags(events[i], cudaEventDisableTiming),
                       "cannot use the GPU", err) < 0)
            return -1;
    }
    return 0;
}

int engine_arrive(const char *what, struct ddp_err *err)
{
    return check_cuda(cudaDeviceSynchronize(), what, err);
}

static int make_blocks(struct engine *e, struct ddp_err *err)
{
    size_t floats = model_param_count(e->job.model), batch = (size_t)e->job.batch_size;
    size_t bytes = floats * sizeof(float);
    size_t in = sizeof(struct cuda_step) + most_samples(e) * sizeof(uint32_t);
    size_t outputs = (size_t)e->job.data->shape.outputs;
    if (device_take(&e->memory, "weights", bytes, &e->weights, err) < 0 ||
        device_take(&e->memory, "gradients", CUDA_HEAD * sizeof(float) + bytes, &e->block,
                    err) < 0 ||
        device_take(&e->memory, "steps", sizeof *e->updates, &e->updates, err) < 0 ||
        device_take(&e->memory, "steps", sizeof e->job.data->as_float, &e->as_float,
                    err) < 0 ||
        device_take(&e->memory, "steps", sizeof *e->own, &e->own, err) < 0 ||
        device_take(&e->memory, "steps", sizeof *e->scale, &e->scale, err) < 0 ||
        device_take(&e->memory, "steps", CUDA_PARTS * sizeof *e->parts, &e->parts, err) <
            0 ||
        (e->job.accumulate > 1 &&
         device_take(&e->memory, "gradients", bytes, &e->extra, err) < 0) ||
        device_take(&e->memory, "steps", in, &e->in, err) < 0 ||
        device_take(&e->memory, "steps", sizeof *e->result, &e->result, err) < 0 ||
        device_take(&e->memory, "steps", batch, &e->labels, err) < 0 ||
        device_take(&e->memory, "steps", batch * outputs * sizeof(float), &e->targets,
                    err) < 0 ||
        (e->job.precision == PRECISION_FP16 &&
         device_take(&e->memory, "steps", sizeof *e->scaler, &e->scaler, err) < 0))
        return -1;
    e->grads = e->block + CUDA_HEAD;
    float one = 1; /* unless there is clipping */
    if (check_cuda(cudaMemcpy(e->scale, &one, sizeof one, cudaMemcpyHostToDevice),
                   "steps", err) < 0)
        return -1;
    if (check_cuda(cudaMemcpy(e->as_float, e->job.data->as_float,
                              sizeof e->job.data->as_float, cudaMemcpyHostToDevice),
                   "steps", err) < 0)
        return -1;
    return engine_arrive("steps", err);
}

/* Once it is known which part of them is this rank's. */
static int make_states(struct engine *e, struct ddp_err *err)
{
    size_t bytes = sums_state_floats(e) * sizeof(float);
    for (int k = 0; k < OPTIM_STATES; k++) {
        if (e->job.optim->states[k] &&
            device_take(&e->memory, "optimiser", bytes, &e->states[k], err) < 0)
            return -1;
    }
    return 0;
}

static size_t part_bytes(const struct engine *e, const struct samples *part)
{
    size_t image = image_bytes(e);
    if (classifies(e))
        return part->n * (image + 1);
    return part->n * (image + (size_t)e->job.data->shape.outputs) * sizeof(float);
}

/* `n` samples' room on the device. */
static int take_part(struct engine *e, size_t n, const char *what, struct resident *r,
                     struct ddp_err *err)
{
    size_t image = image_bytes(e), outputs = (size_t)e->job.data->shape.outputs;
    if (classifies(e))
        return device_take(&e->memory, what, n * image, &r->pixels, err) < 0
                   ? -1
                   : device_take(&e->memory, what, n, &r->labels, err);
    return device_take(&e->memory, what, n * image * sizeof(float), &r->inputs, err) < 0
               ? -1
               : device_take(&e->memory, what, n * outputs * sizeof(float), &r->targets,
                             err);
}

static int upload_part(struct engine *e, const struct samples *part, struct resident *r,
                       struct ddp_err *err)
{
    size_t image = image_bytes(e), outputs = (size_t)e->job.data->shape.outputs;
    const char *what = "the data set";
    if (take_part(e, part->n, what, r, err) < 0)
        return -1;
    struct {
        void *to;
        const void *from;
        size_t bytes;
    } copies[] = {{r->pixels, part->pixels, part->n * image},
                  {r->labels, part->labels, part->n},
                  {r->inputs, part->inputs, part->n * image * sizeof(float)},
                  {r->targets, part->targets, part->n * outputs * sizeof(float)}};
    for (size_t i = 0; i < ARRAY_LEN(copies); i++) {
        if (copies[i].to &&
            check_cuda(cudaMemcpy(copies[i].to, copies[i].from, copies[i].bytes,
                                  cudaMemcpyHostToDevice),
                       what, err) < 0)
            return -1;
    }
    return engine_arrive(what, err);
}

/* DDP_GPU_DATA=host keeps the data set out of the device, whatever its size. */
static int place_data(struct engine *e, struct ddp_err *err)
{
    size_t left = 0, all = 0;
    const struct dataset *d = e->job.data;
    const char *wish = getenv("DDP_GPU_DATA");
    if (check_cuda(cudaMemGetInfo(&left, &all), "how much memory is free", err) < 0)
        return -1;
    e->resident = part_bytes(e, &d->train) + part_bytes(e, &d->test) < left / 2 &&
                  !(wish && strcmp(wish, "host") == 0);
    if (!e->resident)
        return 0;
    return upload_part(e, &d->train, &e->train, err) < 0
               ? -1
               : upload_part(e, &d->test, &e->test, err);
}

static int make_slots(struct engine *e, struct ddp_err *err)
{
    size_t batch = most_samples(e);
    size_t outputs = (size_t)e->job.data->shape.outputs;
    size_t sample =
        classifies(e) ? image_bytes(e) + 1 : (image_bytes(e) + outputs) * sizeof(float);
    const char *what = "pinned memory";
    bool timed = e->job.trace && !e->resident;
    for (int i = 0; i < SLOTS; i++) {
        struct slot *s = &e->slots[i];
        void *in, *result, *bytes = NULL;
        if (check_cuda(cudaMallocHost(&in, sizeof *s->in + batch * sizeof(uint32_t)),
                       what, err) < 0)
            return -1;
        s->in = in;
        if (check_cuda(cudaMallocHost(&result, sizeof *s->result), what, err) < 0)
            return -1;
        s->result = result;
        if (!e->resident) {
            if (check_cuda(cudaMallocHost(&bytes, batch * sample), what, err) < 0)
                return -1;
            s->bytes = bytes;
            if (take_part(e, batch, "batches", &s->staged, err) < 0)
                return -1;
        }
        if ((timed && check_cuda(cudaEventCreate(&s->left), what, err) < 0) ||
            check_cuda(
                cudaEventCreateWithFlags(&s->arrived, timed ? cudaEventDefault
                                                            : cudaEventDisableTiming),
                what, err) < 0 ||
            check_cuda(cudaEventCreateWithFlags(&s->done, cudaEventDisableTiming), what,
                       err) < 0)
            return -1;
    }
    return 0;
}

/* What a rank can do before it knows the others. */
static int prepare(struct engine *e, struct ddp_err *err)
{
    const struct engine_job *job = &e->job;
    struct layers_settings settings = {.io = job->data->shape,
                                       .max_batch = job->batch_size,
                                       .dropout = job->dropout,
                                       .share_norms = shares_norms(e),
                                       .precision = job->precision};
    sums_plan(e);
    if (ranges_check(job->profile, err) < 0 || choose_device(e, err) < 0 ||
        make_streams(e, err) < 0 || make_blocks(e, err) < 0 || make_states(e, err) < 0)
        return -1;
    e->net = layers_create(job->model, settings, e->weights, &e->memory, e->main, err);
    if (!e->net || place_data(e, err) < 0)
        return -1;
    layers_observe(e->net, job->trace ? spans_layer : NULL, e);
    return make_slots(e, err) < 0 ? -1 : engine_arrive("memory", err);
}

/* The memory was not enough: which batch would fit? It is tried, half as many each time.
 */
static void say_what_fits(struct engine *e, struct ddp_err *err)
{
    int batch = e->job.batch_size;
    bool fits = false;
    device_free(&e->memory);
    while (!fits && batch > 1) {
        struct ddp_err ignored;
        struct engine *trial = xcalloc(1, sizeof *trial);
        trial->job = e->job;
        trial->job.batch_size = batch /= 2;
        trial->rank = e->rank;
        trial->size = e->size;
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
    size_t n = strlen(e->text);
    snprintf(e->text + n, sizeof e->text - n, ", %s, %.0f MiB%s%s%s",
             precisions[e->job.precision],
             (double)device_taken(&e->memory, NULL) / 0x1p20,
             e->resident ? " with the data" : "", e->comm ? ", " : "",
             e->comm ? comm_version(e->comm) : "");
}

void engine_close(struct engine *e)
{
    if (!e)
        return;
    for (int i = 0; i < e->ngraphs; i++) /* they hold on to the communicator */
        engine_forget(e, &e->graphs[i]);
    comm_destroy(e->comm);
    layers_destroy(e->net);
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
    cudaEvent_t events[] = {e->ready, e->summed, e->anchor};
    cudaStream_t streams[] = {e->main, e->sums, e->copies};
    for (size_t i = 0; i < ARRAY_LEN(events); i++) {
        if (events[i])
            cudaEventDestroy(events[i]);
    }
    for (size_t i = 0; i < ARRAY_LEN(streams); i++) {
        if (streams[i])
            cudaStreamDestroy(streams[i]);
    }
    device_free(&e->memory);
    free(e->buckets);
    free(e->pieces);
    free(e);
}

struct engine *engine_open(const struct engine_job *job, struct ddp_err *err)
{
    struct engine *e = xcalloc(1, sizeof *e);
    e->job = *job;
    e->rank = ddp_group_rank(job->group);
    e->size = ddp_group_size(job->group);
    int rc = prepare(e, err);
    if (rc < 0 && e->memory.full)
        say_what_fits(e, err);
    if (e->size > 1) {
        e->comm = comm_create(job->group, job->timeout_ms, rc, err);
        rc = e->comm ? 0 : -1;
        if (rc == 0 && shares_norms(e))
            layers_share_norms(e->net, sums_norm, e);
        if (rc == 0)
            rc = sums_settle(e, err);
    }
    if (rc < 0) {
        engine_close(e);
        return NULL;
    }
    describe(e);
    return e;
}
