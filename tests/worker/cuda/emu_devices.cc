/* tests/worker/cuda/emu_devices.cc - see emu.h: devices and their memory
 *
 * Faults by environment: EMU_DEVICES=n (0: none), EMU_MEMORY_MB, EMU_DRIVER=version
 * (12040: older than the toolkit), EMU_TAKEN=compute mode (3: by one program, 2: by
 * none), EMU_PEERS=1 (devices may use each other's memory, when they have been told to),
 * EMU_REFUSED=kernel:n (from the n-th launch of it on, counted from 1, none is taken; of
 * a graph: graph:n).
 * EMU_CHIP="NVIDIA L40:8.9" (a name and a compute capability; otherwise an H200's).
 * EMU_MEMORY_MB may have a size for each device: "100,20", the last for all others.
 */
#include "tests/worker/cuda/emu_check.h"
#include "tests/worker/cuda/emu_impl.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <malloc.h>
#include <map>
#include <sys/mman.h>

using namespace emu;

/* ---- memory: a range of addresses for each device, mapped while it works ---- */

char *emu::arena;
static size_t arena_used[DEVICES], arena_taken[DEVICES];
struct block {
    size_t bytes, room;
};
static std::map<void *, block> blocks;
static bool peers[DEVICES][DEVICES]; /* [a][b]: a may use b's memory */
static unsigned mapped;              /* bits: devices */
static int at_work;
static thread_local int chosen;
static thread_local cudaError_t last_error;
int emu::captures;

size_t emu::env_number(const char *name, size_t otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoull(text, nullptr, 10) : otherwise;
}

/* The stand-ins' own blocks are used again, and not given back each time. */
static const int keep_blocks =
    mallopt(M_MMAP_THRESHOLD, 1 << 30) + mallopt(M_TRIM_THRESHOLD, 1 << 30);

/* Of the current device. */
static size_t memory_size()
{
    const char *sizes = getenv("EMU_MEMORY_MB");
    for (int i = 0; i < chosen && sizes && strchr(sizes, ','); i++)
        sizes = strchr(sizes, ',') + 1;
    return size_t(sizes && *sizes ? atoll(sizes) : 2048) << 20;
}

bool emu_recording()
{
    return captures > 0;
}

int emu_device()
{
    return chosen;
}

void emu::map_only(unsigned devices)
{
    if (devices == mapped)
        return;
    for (unsigned d = 0; d < DEVICES; d++)
        if ((devices ^ mapped) >> d & 1 && arena_used[d])
            mprotect(arena + d * RESERVED, arena_used[d],
                     devices >> d & 1 ? PROT_READ | PROT_WRITE : PROT_NONE);
    mapped = devices;
}

device_work::device_work()
{
    at_work++;
}

device_work::~device_work()
{
    if (--at_work == 0)
        map_only(0);
}

/* The pages of [p, p + n): all of a device's takes the kernel its time. */
struct block_work {
    char *from = nullptr;
    size_t bytes = 0;
    bool stays = false;
    block_work(const void *p, size_t n)
    {
        const char *at = static_cast<const char *>(p);
        int device = device_of(p);
        if (device < 0)
            return;
        from = arena + arena_offset(p) / PAGE * PAGE;
        bytes = size_t(at + n - from);
        stays = mapped >> device & 1;
        mprotect(from, bytes, PROT_READ | PROT_WRITE);
    }
    ~block_work()
    {
        if (from && !stays)
            mprotect(from, bytes, PROT_NONE);
    }
};

extern "C" cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *a, const void *p)
{
    int device = device_of(p);
    *a = {};
    a->type = device < 0 ? cudaMemoryTypeUnregistered : cudaMemoryTypeDevice;
    a->device = device;
    return cudaSuccess;
}

extern "C" cudaError_t cudaMalloc(void **p, size_t bytes)
{
    size_t room = (bytes + PAGE - 1) / PAGE * PAGE;
    if (captures)
        return cudaErrorStreamCaptureUnsupported;
    size_t &used = arena_used[chosen], &taken = arena_taken[chosen];
    if (taken + room > memory_size() || used + room + PAGE > RESERVED)
        return cudaErrorMemoryAllocation;
    if (!arena)
        arena = (char *)mmap(nullptr, DEVICES * RESERVED, PROT_NONE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    *p = arena + size_t(chosen) * RESERVED + used;
    used += room + PAGE; /* never used again */
    taken += room;
    blocks[*p] = {bytes, room};
    allocated(*p, bytes);
    block_work work(*p, room);
    memset(*p, 0xff,
           std::min(room, size_t(1) << 20)); /* not numbers, until they are set */
    return cudaSuccess;
}

extern "C" cudaError_t cudaFree(void *p)
{
    if (captures)
        return cudaErrorStreamCaptureUnsupported;
    if (!p)
        return cudaSuccess;
    auto found = blocks.find(p);
    if (found == blocks.end())
        return cudaErrorInvalidValue;
    emu::finish_usual(device_of(p)); /* as CUDA waits for the device */
    arena_taken[device_of(p)] -= found->second.room;
    freed(p, found->second.bytes);
    blocks.erase(found);
    return cudaSuccess;
}

extern "C" cudaError_t cudaMemGetInfo(size_t *left, size_t *all)
{
    *all = memory_size();
    *left = *all - arena_taken[chosen];
    return cudaSuccess;
}

static std::map<const void *, size_t> pinned;

bool emu::is_pinned(const void *p)
{
    auto after = pinned.upper_bound(p);
    return after != pinned.begin() &&
           p < static_cast<const char *>((--after)->first) + after->second;
}

extern "C" cudaError_t cudaMallocHost(void **p, size_t bytes)
{
    if (captures)
        return cudaErrorStreamCaptureUnsupported;
    *p = calloc(1, bytes);
    pinned[*p] = bytes;
    return *p ? cudaSuccess : cudaErrorMemoryAllocation;
}

extern "C" cudaError_t cudaFreeHost(void *p)
{
    pinned.erase(p);
    free(p);
    return cudaSuccess;
}

bool emu::reaches(int device, const void *p)
{
    int there = device_of(p);
    return there >= 0 && reachable(device) >> there & 1;
}

unsigned emu::reachable(int device)
{
    unsigned devices = 1u << device;
    for (int d = 0; d < DEVICES; d++)
        devices |= unsigned(peers[device][d]) << d;
    return devices;
}

/* ---- devices ---- */

extern "C" cudaError_t cudaGetDeviceCount(int *n)
{
    *n = int(env_number("EMU_DEVICES", 8));
    if (env_number("EMU_DRIVER", CUDART_VERSION) < CUDART_VERSION)
        return cudaErrorInsufficientDriver;
    return *n > 0 ? cudaSuccess : cudaErrorNoDevice;
}

extern "C" cudaError_t cudaSetDevice(int device)
{
    int n;
    cudaGetDeviceCount(&n);
    if (getenv("EMU_TAKEN"))
        return cudaErrorDevicesUnavailable;
    if (device < 0 || device >= n || device >= DEVICES)
        return cudaErrorInvalidDevice;
    chosen = device;
    return cudaSuccess;
}

extern "C" cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    *can = device != peer && env_number("EMU_PEERS", 0);
    return cudaSuccess;
}

extern "C" cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    int can;
    cudaDeviceCanAccessPeer(&can, chosen, peer);
    if (!can)
        return cudaErrorPeerAccessUnsupported;
    if (peers[chosen][peer])
        return cudaErrorPeerAccessAlreadyEnabled;
    peers[chosen][peer] = true;
    return cudaSuccess;
}

extern "C" cudaError_t cudaDriverGetVersion(int *version)
{
    *version = int(env_number("EMU_DRIVER", CUDART_VERSION));
    return cudaSuccess;
}

extern "C" cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

static const char *chip()
{
    const char *told = getenv("EMU_CHIP");
    return told ? told : "a GPU made of a CPU, an H200 by its numbers:9.0";
}

static const char *chip_number()
{
    return strchr(chip(), ':') + 1;
}

extern "C" cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr which,
                                              int device)
{
    switch (int(which)) {
    case cudaDevAttrComputeMode:
        *value = int(env_number("EMU_TAKEN", 0));
        return cudaSuccess;
    case cudaDevAttrClockRate: /* an H200's */
        *value = 1980000;
        return cudaSuccess;
    default:
        return cudaErrorInvalidValue;
    }
}

extern "C" cudaError_t cudaGetDevice(int *device)
{
    *device = chosen;
    return cudaSuccess;
}

extern "C" cudaError_t cudaDeviceGetPCIBusId(char *text, int size, int device)
{
    snprintf(text, size_t(size), "0000:%02x:00.0", device + 1);
    return cudaSuccess;
}

extern "C" cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device)
{
    memset(prop, 0, sizeof *prop);
    const char *other = getenv("EMU_OTHER");
    snprintf(prop->name, sizeof prop->name, "%.*s%s", int(strcspn(chip(), ":")), chip(),
             other && atoi(other) == device ? ", another" : "");
    prop->major = atoi(chip_number());
    prop->minor = atoi(strchr(chip_number(), '.') + 1);
    prop->multiProcessorCount = 132; /* an H200's */
    return cudaSuccess;
}

void emu::failed(cudaError_t rc)
{
    last_error = rc;
}

bool emu_may_launch(const char *kernel)
{
    static long launches;
    const char *text = getenv("EMU_REFUSED"), *colon = text ? strchr(text, ':') : nullptr;
    std::string name = colon ? std::string(text, colon) : "", is = kernel;
    size_t at = is.find(name + "<"); /* also "(channels_walk<V, name<T, V>>)" */
    bool meant =
        is == name || (at != std::string::npos && (at == 0 || strchr("( ", is[at - 1])));
    if (!colon || !meant || ++launches < atol(colon + 1))
        return true;
    failed(cudaErrorInvalidConfiguration);
    return false;
}

extern "C" cudaError_t cudaPeekAtLastError()
{
    return last_error;
}

extern "C" cudaError_t cudaGetLastError()
{
    cudaError_t rc = last_error;
    last_error = cudaSuccess;
    return rc;
}

extern "C" const char *cudaGetErrorString(cudaError_t rc)
{
    switch (int(rc)) {
    case cudaErrorMemoryAllocation:
        return "out of memory";
    case cudaErrorNoDevice:
        return "no CUDA-capable device is detected";
    case cudaErrorDevicesUnavailable:
        return "all CUDA-capable devices are busy or unavailable";
    case cudaErrorInvalidDevice:
        return "invalid device ordinal";
    case cudaErrorInvalidConfiguration:
        return "invalid configuration argument";
    case cudaErrorInvalidResourceHandle:
        return "invalid resource handle";
    case cudaErrorStreamCaptureUnsupported:
        return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureUnjoined:
        return "capturing stream has unjoined work";
    default:
        return "an error";
    }
}
