/* worker/cuda/devices.c - see engine_impl.h: the choice of devices, and of each one's
 * layers
 *
 * A rank uses the device with its local rank's number. With pipeline stages it uses
 * two, if all ranks that see the same devices can have two; else both stages share
 * one.
 */
#include "worker/cuda/engine_impl.h"

#include "common/err.h"
#include "common/fnv.h"
#include "common/mem.h"
#include "common/scoped.h"
#include "worker/cuda/peak.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int count_devices(int *n, struct ddp_err *err)
{
    int most = 0, ours = 0;
    cudaError_t rc = cudaGetDeviceCount(n);
    if (rc == cudaSuccess)
        return *n > 0 ? 0 : err_set(err, "no GPU: the driver reports none");
    cudaGetLastError(); /* clears the error */
    if (rc != cudaErrorInsufficientDriver || cudaDriverGetVersion(&most) != cudaSuccess ||
        most == 0 || cudaRuntimeGetVersion(&ours) != cudaSuccess)
        return err_set(err, "no GPU: %s", cudaGetErrorString(rc));
    return err_set(
        err,
        "the NVIDIA driver supports CUDA up to %d.%d, but this engine was built "
        "with %d.%d: update the driver, or build with an older toolkit",
        most / 1000, most % 1000 / 10, ours / 1000, ours % 1000 / 10);
}

int engine_probe(struct ddp_err *err)
{
    int n = 0;
    return count_devices(&n, err);
}

/* The error for a device that cannot be used. */
static int say_taken(int device, cudaError_t rc, struct ddp_err *err)
{
    char bus[32] = "?";
    int mode = cudaComputeModeDefault;
    cudaGetLastError();
    cudaDeviceGetPCIBusId(bus, sizeof bus, device);
    cudaDeviceGetAttribute(&mode, cudaDevAttrComputeMode, device);
    if (mode == cudaComputeModeProhibited)
        return err_set(
            err, "GPU %d (%s) is in compute mode Prohibited; 'nvidia-smi -c 0' resets it",
            device, bus);
    if (mode != cudaComputeModeDefault)
        return err_set(err,
                       "GPU %d (%s) is in use, and its compute mode allows one process: "
                       "nvidia-smi shows which, 'nvidia-smi -c 0' allows several",
                       device, bus);
    return err_set(err, "GPU %d (%s): %s; nvidia-smi lists its processes", device, bus,
                   cudaGetErrorString(rc));
}

static int use_device(struct engine *e, int device, struct ddp_err *err)
{
    struct cudaDeviceProp prop;
    cudaError_t rc = cudaSetDevice(device);
    if (rc == cudaSuccess)
        rc = cudaFree(NULL); /* older runtimes report an unusable device only here */
    if (rc == cudaErrorDevicesUnavailable)
        return say_taken(device, rc, err);
    cuda_doing("cannot use the GPU");
    cuda_note(rc);
    CUDA(cudaGetDeviceProperties(&prop, device));
    TRY(cuda_outcome(err));
    free(e->text);
    e->text = xstrdup(prop.name);
    e->peak = peak_of_device(device, &prop, e->job.how.precision);
    return 0;
}

/* ---- two devices ---- */

/* The devices that a rank sees. */
struct sight {
    char host[64];
    uint64_t which; /* a hash of all devices, independent of their order */
    int n;          /* 0: none; the error is reported later */
};

static struct sight look(void)
{
    struct sight s;
    struct ddp_err ignored;
    memset(&s, 0, sizeof s); /* padding, too: structs are compared by memcmp */
    gethostname(s.host, sizeof s.host - 1);
    if (count_devices(&s.n, &ignored) < 0)
        s.n = 0;
    for (int i = 0; i < s.n; i++) {
        char bus[32] = "";
        cudaDeviceGetPCIBusId(bus, sizeof bus, i);
        s.which += fnv1a(FNV1A, bus, strlen(bus));
    }
    return s;
}

/* The number of ranks that see the same devices as rank r, and its index among them. */
static int same_sight(const struct sight *all, int size, int r, int *mine)
{
    int n = 0;
    for (int q = 0; q < size; q++) {
        if (q == r)
            *mine = n;
        n += memcmp(&all[q], &all[r], sizeof *all) == 0;
    }
    return n;
}

/* Gives all ranks two devices each, or one; the same decision on all ranks. */
static int choose_two(struct engine *e, struct ddp_err *err)
{
    const struct sight own = look();
    OWNED struct sight *all = xcalloc((size_t)e->size, sizeof *all);
    int mine = 0, two = 1;
    TRY(ddp_all_gather(e->job.group, &own, all, sizeof own, DDP_U8, err));
    for (int r = 0; r < e->size; r++)
        two = two && all[r].n >= 2 * same_sight(all, e->size, r, &mine);
    same_sight(all, e->size, e->rank, &mine);
    first_of(e)->device = two ? 2 * mine : own.n > 0 ? mine % own.n : 0;
    last_of(e)->device = first_of(e)->device + two;
    return 0;
}

/* Enables direct copies from one device to the other, where possible. */
static void make_peers(struct engine *e, int from, int to)
{
    int can = 0, a = e->stages[from].device, b = e->stages[to].device;
    if (a == b)
        return;
    cuda_doing("from GPU to GPU");
    CUDA(cudaDeviceCanAccessPeer(&can, a, b));
    e->far = e->far || !can;
    if (!can)
        return;
    stage_enter(&e->stages[from]);
    cudaError_t rc = cudaDeviceEnablePeerAccess(b, 0);
    if (rc == cudaErrorPeerAccessAlreadyEnabled)
        cudaGetLastError();
    else
        cuda_note(rc);
}

/* ---- all ---- */

static int cut_layers(struct engine *e, struct ddp_err *err)
{
    const struct model *m = e->job.model;
    int first[PIPELINE_STAGES + 1], batch = e->job.how.batch_size;
    TRY(pipeline_split(m, e->nstages, first, err));
    e->micro = e->nstages > 1 ? pipeline_micro_batches(batch, e->job.how.micro) : 1;
    e->max_micro = (batch + e->micro - 1) / e->micro;
    for (EACH_STAGE(s, e)) {
        s->from = first[s->index];
        s->to = first[s->index + 1];
        s->part = layers_part(m, s->from, s->to);
    }
    return 0;
}

/* Stages on one device share its memory, and its lane (comm.h). */
static void share(struct engine *e)
{
    for (EACH_STAGE(s, e)) {
        s->lane = s->device == first_of(e)->device ? 0 : s->index;
        s->memory = &e->memories[s->lane];
        s->memory->device = s->device;
    }
}

void stages_place_as(struct engine *e, const struct engine *other)
{
    for (EACH_STAGE(s, e))
        s->device = other->stages[s->index].device;
    cut_layers(e, NULL); /* succeeded for the other */
    share(e);
    e->far = other->far;
}

int stages_place(struct engine *e, struct ddp_err *err)
{
    int n = 0;
    if (e->nstages > 1)
        TRY(choose_two(e, err));
    TRY(count_devices(&n, err));
    if (e->nstages == 1)
        first_of(e)->device = e->job.local_rank % n;
    share(e);
    for (EACH_STAGE_BACK(s, e))
        TRY(use_device(e, s->device, err));
    TRY(cut_layers(e, err));
    if (e->nstages > 1) {
        make_peers(e, 0, 1);
        make_peers(e, 1, 0);
    }
    return cuda_outcome(err);
}
