/* tests/worker/cuda/emu_cudart.cc - see emu.h: memory, streams, events, graphs, kernels
 *
 * Faults by environment: EMU_DEVICES=n (0: none), EMU_MEMORY_MB, EMU_SEED (of the order
 * in which graphs are played), EMU_DRIVER=version (12040: older than the toolkit),
 * EMU_TAKEN=compute mode (3: by one program, 2: nobody may), EMU_PEERS=1 (devices may
 * use each other's memory, when they have been told to).
 */
#include "tests/worker/cuda/emu.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <malloc.h>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>
#include <vector>

/* ---- memory: a range of addresses for each device, mapped while it works ---- */

enum { DEVICES = 16 };
static const size_t RESERVED = size_t(1) << 32;
static char *arena; /* of all devices, one after the other */
static size_t arena_used[DEVICES], arena_taken[DEVICES];
static std::map<void *, size_t> blocks;
static bool peers[DEVICES][DEVICES]; /* who may use whose memory */
static unsigned mapped;              /* bits: devices */
static int at_work, captures;
static thread_local int chosen;
static cudaError_t last_error;

static size_t env_number(const char *name, size_t otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoull(text, nullptr, 10) : otherwise;
}

/* The stand-ins' own blocks are used again, and not given back each time. */
static const int keep_blocks =
    mallopt(M_MMAP_THRESHOLD, 1 << 30) + mallopt(M_TRIM_THRESHOLD, 1 << 30);

static size_t memory_size()
{
    return env_number("EMU_MEMORY_MB", 2048) << 20;
}

int emu_device()
{
    return chosen;
}

/* Whose memory it is; -1: the host's. */
static int device_of(const void *p)
{
    const char *at = static_cast<const char *>(p);
    return arena && at >= arena && at < arena + DEVICES * RESERVED
               ? int(size_t(at - arena) / RESERVED)
               : -1;
}

/* From now on only the memory of these devices can be touched. */
static void map_only(unsigned devices)
{
    for (unsigned d = 0; d < DEVICES; d++)
        if ((devices ^ mapped) >> d & 1 && arena_used[d])
            mprotect(arena + d * RESERVED, arena_used[d],
                     devices >> d & 1 ? PROT_READ | PROT_WRITE : PROT_NONE);
    mapped = devices;
}

struct device_work { /* while one lives, devices can work */
    device_work()
    {
        at_work++;
    }
    ~device_work()
    {
        if (--at_work == 0)
            map_only(0);
    }
};

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
        from = arena + (at - arena) / 4096 * 4096;
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

extern "C" cudaError_t cudaMalloc(void **p, size_t bytes)
{
    size_t page = 4096, room = (bytes + page - 1) / page * page;
    if (captures)
        return cudaErrorStreamCaptureUnsupported;
    size_t &used = arena_used[chosen], &taken = arena_taken[chosen];
    if (taken + room > memory_size() || used + room > RESERVED)
        return cudaErrorMemoryAllocation;
    if (!arena)
        arena = (char *)mmap(nullptr, DEVICES * RESERVED, PROT_NONE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    *p = arena + size_t(chosen) * RESERVED + used;
    used += room;
    taken += room;
    blocks[*p] = room;
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
    arena_taken[device_of(p)] -= found->second;
    blocks.erase(found);
    return cudaSuccess;
}

extern "C" cudaError_t cudaMemGetInfo(size_t *left, size_t *all)
{
    *all = memory_size();
    *left = *all - arena_taken[chosen];
    return cudaSuccess;
}

extern "C" cudaError_t cudaMallocHost(void **p, size_t bytes)
{
    if (captures)
        return cudaErrorStreamCaptureUnsupported;
    *p = calloc(1, bytes);
    return *p ? cudaSuccess : cudaErrorMemoryAllocation;
}

extern "C" cudaError_t cudaFreeHost(void *p)
{
    free(p);
    return cudaSuccess;
}

/* ---- work and what it waits for ---- */

struct op;
typedef std::shared_ptr<op> op_ref;

struct op {
    std::function<bool()> work;
    std::vector<op_ref> after;
    bool done = false;
};

/* Whatever `o` needs, then `o`. False: something has not finished yet. */
static bool run(const op_ref &o)
{
    if (!o || o->done)
        return true;
    for (const op_ref &before : o->after) {
        if (!run(before))
            return false;
    }
    if (o->work && !o->work())
        return false;
    o->done = true;
    o->work = nullptr;
    o->after.clear();
    return true;
}

/* A recording: operations by number, with the numbers they come after. */
struct CUgraph_st {
    struct node {
        std::function<bool()> work;
        std::vector<size_t> after;
    };
    std::vector<node> nodes;
};

struct CUgraphExec_st {
    CUgraph_st graph;
};

struct CUstream_st {
    int device;
    std::vector<op_ref> tail; /* what the next operation comes after */
    cudaGraph_t recording = nullptr;
    std::vector<size_t> recorded_tail;
};

struct CUevent_st {
    int device;
    std::vector<op_ref> at;
    bool timed = false;
    std::shared_ptr<double> ms = std::make_shared<double>(0); /* when it was passed */
    cudaGraph_t recording = nullptr;
    std::vector<size_t> recorded_at;
    bool asked = false;
};

static std::set<cudaStream_t> streams;

int emu_device_of(cudaStream_t s)
{
    return s->device;
}

bool emu_may_ask(cudaStream_t s, const std::vector<int64_t> &product)
{
    static std::set<std::vector<int64_t>> known;
    std::vector<int64_t> here = product;
    here.push_back(s->device);
    return s->recording ? known.count(here) > 0 : (known.insert(here), true);
}

static void put(cudaStream_t s, std::function<bool()> work)
{
    if (s->recording) {
        s->recording->nodes.push_back({work, s->recorded_tail});
        s->recorded_tail = {s->recording->nodes.size() - 1};
        return;
    }
    op_ref o = std::make_shared<op>();
    o->work = work;
    o->after = s->tail;
    s->tail = {o};
}

/* Work that may touch the device's memory, and what it reaches. */
void emu_put(cudaStream_t s, std::function<bool()> work)
{
    unsigned devices = 1u << s->device;
    for (int d = 0; d < DEVICES; d++)
        devices |= unsigned(peers[s->device][d]) << d;
    put(s, [=] {
        if (mapped != devices)
            map_only(devices);
        return work();
    });
}

static bool drain(cudaStream_t s)
{
    device_work work;
    for (const op_ref &o : s->tail) {
        if (!run(o))
            return false;
    }
    return true;
}

extern "C" cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags)
{
    if (flags != cudaStreamNonBlocking)
        return cudaErrorInvalidValue;
    *s = new CUstream_st;
    (*s)->device = chosen;
    streams.insert(*s);
    return cudaSuccess;
}

extern "C" cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    streams.erase(s);
    delete s;
    return cudaSuccess;
}

extern "C" cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    if (s->recording)
        return cudaErrorStreamCaptureUnsupported;
    device_work work;
    while (!drain(s))
        usleep(200);
    return cudaSuccess;
}

extern "C" cudaError_t cudaDeviceSynchronize()
{
    if (captures)
        return cudaErrorStreamCaptureUnsupported;
    for (cudaStream_t s : streams)
        if (s->device == chosen)
            cudaStreamSynchronize(s);
    return cudaSuccess;
}

extern "C" cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags)
{
    *e = new CUevent_st;
    (*e)->device = chosen;
    (*e)->timed = !(flags & cudaEventDisableTiming);
    return cudaSuccess;
}

extern "C" cudaError_t cudaEventCreate(cudaEvent_t *e)
{
    return cudaEventCreateWithFlags(e, cudaEventDefault);
}

extern "C" cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    delete e;
    return cudaSuccess;
}

static double now_ms()
{
    using namespace std::chrono;
    return duration<double, std::milli>(steady_clock::now().time_since_epoch()).count();
}

/* Of two that have been passed; one of a recording never is. */
extern "C" cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t a, cudaEvent_t b)
{
    *ms = float(*b->ms - *a->ms);
    return a->timed && b->timed && a->device == b->device && *a->ms > 0 && *b->ms > 0
               ? cudaSuccess
               : cudaErrorInvalidResourceHandle;
}

static void note_time(cudaEvent_t e, cudaStream_t s)
{
    std::shared_ptr<double> ms = e->ms;
    if (e->timed)
        emu_put(s, [ms] {
            *ms = now_ms();
            return true;
        });
}

/* In a recording: a time to be noted each time it is played. */
extern "C" cudaError_t cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t s,
                                                unsigned flags)
{
    if (flags != cudaEventRecordExternal || !s->recording)
        return cudaErrorInvalidValue;
    if (e->device != s->device)
        return cudaErrorInvalidResourceHandle;
    note_time(e, s);
    return cudaSuccess;
}

extern "C" cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    if (e->device != s->device)
        return cudaErrorInvalidResourceHandle;
    if (!s->recording)
        note_time(e, s);
    e->recording = s->recording;
    e->recorded_at = s->recorded_tail;
    e->at = s->tail;
    e->asked = false;
    return cudaSuccess;
}

extern "C" cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags)
{
    if (e->recording) {
        if (s->recording && s->recording != e->recording)
            return cudaErrorStreamCaptureIsolation;
        s->recording = e->recording;
        s->recorded_tail.insert(s->recorded_tail.end(), e->recorded_at.begin(),
                                e->recorded_at.end());
    } else if (s->recording) {
        return cudaErrorStreamCaptureIsolation;
    } else {
        s->tail.insert(s->tail.end(), e->at.begin(), e->at.end());
    }
    return cudaSuccess;
}

/* Never at the first time of asking. */
extern "C" cudaError_t cudaEventQuery(cudaEvent_t e)
{
    if (!e->asked) {
        e->asked = true;
        return cudaErrorNotReady;
    }
    /* while it is asked again and again, nothing is unmapped: that takes its time */
    static std::unique_ptr<device_work> held;
    if (!held)
        held = std::make_unique<device_work>();
    for (const op_ref &o : e->at) {
        if (!run(o))
            return cudaErrorNotReady;
    }
    held.reset();
    return cudaSuccess;
}

/* Copies without a stream do not wait for other streams, as ours do not for them. */
extern "C" cudaError_t cudaMemcpy(void *to, const void *from, size_t n, cudaMemcpyKind k)
{
    if (captures)
        return cudaErrorStreamCaptureUnsupported;
    block_work there(to, n), here(from, n);
    memcpy(to, from, n);
    return cudaSuccess;
}

extern "C" cudaError_t cudaMemset(void *p, int byte, size_t n)
{
    if (captures)
        return cudaErrorStreamCaptureUnsupported;
    block_work work(p, n);
    memset(p, byte, n);
    return cudaSuccess;
}

/* May work on this device touch what lies there? */
static bool reaches(int device, const void *p)
{
    int there = device_of(p);
    return there == device || (there >= 0 && peers[device][there]);
}

/* Of the stream's device and the host; cudaMemcpyDefault: and of devices it may reach.
 * There is no cudaMemcpyPeerAsync(): it cannot be recorded. */
extern "C" cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n,
                                       cudaMemcpyKind k, cudaStream_t s)
{
    int there = k == cudaMemcpyDeviceToHost ? -1 : s->device;
    int here = k == cudaMemcpyHostToDevice ? -1 : s->device;
    if (k == cudaMemcpyDefault ? !reaches(s->device, to) || !reaches(s->device, from)
                               : device_of(to) != there || device_of(from) != here)
        return cudaErrorInvalidValue;
    emu_put(s, [=] {
        memcpy(to, from, n);
        return true;
    });
    return cudaSuccess;
}

extern "C" cudaError_t cudaMemsetAsync(void *p, int byte, size_t n, cudaStream_t s)
{
    if (device_of(p) != s->device)
        return cudaErrorInvalidValue;
    emu_put(s, [=] {
        memset(p, byte, n);
        return true;
    });
    return cudaSuccess;
}

/* ---- graphs ---- */

extern "C" cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode mode)
{
    if (mode != cudaStreamCaptureModeThreadLocal || captures)
        return cudaErrorInvalidValue;
    captures++;
    s->recording = new CUgraph_st;
    s->recorded_tail.clear();
    return cudaSuccess;
}

/* All that was recorded must have been joined to the stream that began. */
static bool joined(cudaGraph_t g, std::vector<size_t> from)
{
    std::set<size_t> seen;
    while (!from.empty()) {
        size_t i = from.back();
        from.pop_back();
        if (seen.insert(i).second)
            from.insert(from.end(), g->nodes[i].after.begin(), g->nodes[i].after.end());
    }
    return seen.size() == g->nodes.size();
}

extern "C" cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *graph)
{
    cudaGraph_t g = s->recording;
    captures--;
    bool whole = joined(g, s->recorded_tail);
    for (cudaStream_t other : streams) {
        if (other->recording == g) {
            other->recording = nullptr;
            other->recorded_tail.clear();
        }
    }
    *graph = whole ? g : nullptr;
    if (!whole)
        delete g;
    return whole ? cudaSuccess : cudaErrorStreamCaptureUnjoined;
}

extern "C" cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
    delete g;
    return cudaSuccess;
}

extern "C" cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t g,
                                            unsigned long long flags)
{
    *exec = new CUgraphExec_st{*g};
    return cudaSuccess;
}

extern "C" cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t s)
{
    return s->recording ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}

extern "C" cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    delete exec;
    return cudaSuccess;
}

/* One play: any order that is allowed, drawn anew each time. */
struct play {
    CUgraph_st graph;
    std::vector<size_t> waits;               /* of a node: for so many */
    std::vector<std::vector<size_t>> behind; /* who waits for it */
    std::vector<size_t> ready;
    play(const CUgraph_st &g) : graph(g), waits(g.nodes.size()), behind(g.nodes.size())
    {
        for (size_t i = 0; i < g.nodes.size(); i++) {
            waits[i] = g.nodes[i].after.size();
            for (size_t before : g.nodes[i].after)
                behind[before].push_back(i);
            if (waits[i] == 0)
                ready.push_back(i);
        }
    }
    /* Take the k-th of those that are ready. False: it has not finished. */
    bool take(size_t k)
    {
        size_t i = ready[k];
        if (!graph.nodes[i].work())
            return false;
        ready.erase(ready.begin() + ptrdiff_t(k));
        for (size_t then : behind[i])
            if (--waits[then] == 0)
                ready.push_back(then);
        return true;
    }
    bool go_on()
    {
        static std::mt19937 dice(unsigned(env_number("EMU_SEED", 1)));
        bool moved = true;
        while (!ready.empty() && moved) {
            std::shuffle(ready.begin(), ready.end(), dice);
            moved = false;
            for (size_t k = 0; k < ready.size() && !moved; k++)
                moved = take(k);
        }
        return ready.empty();
    }
};

extern "C" cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s)
{
    auto p = std::make_shared<play>(exec->graph);
    put(s, [p] { return p->go_on(); });
    return cudaSuccess;
}

/* ---- kernels ---- */

struct emu_index emu_thread, emu_block, emu_block_size, emu_grid_size;

/* Threads of a block that meet at __syncthreads() are contexts with stacks of their own,
 * which take turns. They are entered by makecontext() and then changed by _longjmp(),
 * which asks nothing of the kernel. */
static const size_t STACK = 64 << 10;
static ucontext_t entry;
static jmp_buf scheduler;
struct emu_context {
    jmp_buf at;
    bool begun, finished;
};
static std::vector<emu_context> contexts;
static char *stacks; /* pages that nobody uses are never made */
static const std::function<void()> *body;
static unsigned current;
static bool synced;

static void thread_main()
{
    for (;;) { /* a kernel each time it is resumed */
        (*body)();
        contexts[current].finished = true;
        if (_setjmp(contexts[current].at) == 0)
            _longjmp(scheduler, 1);
    }
}

void emu_sync_threads()
{
    synced = true;
    if (_setjmp(contexts[current].at) == 0)
        _longjmp(scheduler, 1);
}

void emu_must_lie(const void *at, size_t bytes)
{
    if (reinterpret_cast<uintptr_t>(at) % bytes == 0)
        return;
    fprintf(stderr, "emulation: %p is no multiple of %zu bytes\n", at, bytes);
    abort();
}

static void resume(unsigned t)
{
    current = t;
    emu_thread.x = t;
    if (_setjmp(scheduler) == 0)
        _longjmp(contexts[t].at, 1);
}

/* The first time it is given its stack. */
static void start_thread(unsigned t)
{
    contexts[t].finished = false;
    if (contexts[t].begun) {
        resume(t);
        return;
    }
    contexts[t].begun = true;
    getcontext(&entry);
    entry.uc_stack.ss_sp = stacks + t * STACK;
    entry.uc_stack.ss_size = STACK;
    entry.uc_link = nullptr;
    makecontext(&entry, thread_main, 0);
    current = t;
    emu_thread.x = t;
    if (_setjmp(scheduler) == 0)
        setcontext(&entry);
}

static void run_block(unsigned threads)
{
    if (contexts.empty()) { /* no block has more; they stay where they are */
        contexts.resize(1024);
        stacks =
            static_cast<char *>(mmap(nullptr, 1024 * STACK, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    }
    synced = false;
    start_thread(0);
    if (!synced) { /* nobody will wait: plain calls do */
        for (unsigned t = 1; t < threads; t++) {
            emu_thread.x = t;
            (*body)();
        }
        return;
    }
    for (unsigned t = 1; t < threads; t++)
        start_thread(t);
    for (bool going = true; going;) {
        going = false;
        for (unsigned t = 0; t < threads; t++) {
            if (!contexts[t].finished) {
                resume(t);
                going = true;
            }
        }
    }
}

void emu_launch(cudaStream_t stream, int blocks, int threads,
                std::function<void()> kernel)
{
    if (stream->device != chosen) {
        last_error = cudaErrorInvalidResourceHandle;
        return;
    }
    emu_put(stream, [=] {
        emu_grid_size.x = unsigned(blocks);
        emu_block_size.x = unsigned(threads);
        body = &kernel;
        for (unsigned b = 0; b < unsigned(blocks); b++) {
            emu_block.x = b;
            run_block(unsigned(threads));
        }
        return true;
    });
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

extern "C" cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr which,
                                              int device)
{
    switch (int(which)) {
    case cudaDevAttrComputeMode:
        *value = int(env_number("EMU_TAKEN", 0));
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor: /* an H200, by its numbers */
        *value = 9;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
        *value = 0;
        return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
        *value = 132;
        return cudaSuccess;
    case cudaDevAttrClockRate:
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
    snprintf(prop->name, sizeof prop->name, "a GPU made of a CPU");
    return cudaSuccess;
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
