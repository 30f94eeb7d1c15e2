/* tests/worker/cuda/emu_streams.cc - see emu.h: streams, events, graphs
 *
 * EMU_SEED: of the order in which graphs are played; EMU_CAPTURE: nothing can be
 * recorded; EMU_FORGETS: what a graph's node waits for in other streams is not known to
 * the checks (emu_check.h), which then have to find races.
 */
#include "tests/worker/cuda/emu_check.h"
#include "tests/worker/cuda/emu_impl.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <unistd.h>
#include <vector>

using namespace emu;

/* ---- work and what it waits for ---- */

struct op;
typedef std::shared_ptr<op> op_ref;

struct op {
    std::function<bool()> work;
    std::vector<op_ref> after;
    struct emu::work at; /* once it is done: with itself in `before` */
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
    if (o->at.id == 0)
        for (const op_ref &before : o->after)
            o->at.before.join(before->at.before);
    o->at.begin();
    at_work = &o->at;
    bool over = !o->work || o->work();
    at_work = nullptr;
    if (!over)
        return false;
    o->done = true;
    o->at.before.add(o->at.id);
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
    std::vector<std::shared_ptr<void>> kept; /* for as long as it can be played */
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

/* NULL's: the legacy default stream. No other stream waits for it, as ours are made, and
 * the host only for what it reads. */
static cudaStream_t usual_stream(int device)
{
    static std::map<int, cudaStream_t> usual;
    cudaStream_t &s = usual[device];
    if (!s) {
        s = new CUstream_st;
        s->device = device;
        streams.insert(s);
    }
    return s;
}

static cudaStream_t given(cudaStream_t s)
{
    return s ? s : usual_stream(emu_device());
}

int emu_device_of(cudaStream_t s)
{
    return given(s)->device;
}

bool emu_may_ask(cudaStream_t s, const std::vector<int64_t> &product)
{
    s = given(s);
    static std::set<std::vector<int64_t>> known;
    std::vector<int64_t> here = product;
    here.push_back(s->device);
    return s->recording ? known.count(here) > 0 : (known.insert(here), true);
}

static void put(cudaStream_t s, std::function<bool()> work)
{
    s = given(s);
    if (s->recording) {
        s->recording->nodes.push_back({work, s->recorded_tail});
        s->recorded_tail = {s->recording->nodes.size() - 1};
        return;
    }
    op_ref o = std::make_shared<op>();
    o->work = work;
    o->at.before = host_past;
    o->after = s->tail;
    s->tail = {o};
}

static bool strict; /* the mode of the recording under way */
static bool spoilt; /* by what it does not allow */

void emu_load(cudaStream_t s, const void *kernel)
{
    s = given(s);
    static std::set<const void *> loaded;
    if (loaded.insert(kernel).second && s->recording && strict) {
        loaded.erase(kernel);
        spoilt = true;
        failed(cudaErrorStreamCaptureUnsupported);
    }
}

/* Work that may touch the device's memory, and what it reaches. */
void emu_put(cudaStream_t s, std::function<bool()> work)
{
    unsigned devices = reachable(emu_device_of(s));
    put(s, [=] {
        map_only(devices);
        return work();
    });
}

bool emu_records(cudaStream_t s)
{
    return given(s)->recording;
}

void emu_keep(cudaStream_t s, std::shared_ptr<void> what)
{
    if (emu_records(s))
        s->recording->kept.push_back(what);
}

static bool drain(cudaStream_t s)
{
    device_work work;
    for (const op_ref &o : s->tail) {
        if (!run(o))
            return false;
        host_past.join(o->at.before);
    }
    return true;
}

bool emu_drained()
{
    bool all = true;
    for (cudaStream_t s : streams)
        all = drain(s) && all;
    return all;
}

extern "C" cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags)
{
    if (flags != cudaStreamNonBlocking)
        return cudaErrorInvalidValue;
    *s = new CUstream_st;
    (*s)->device = emu_device();
    streams.insert(*s);
    return cudaSuccess;
}

/* Priorities are hints: work is done in any order that is allowed. */
enum { USUAL_PRIORITY = 0, FIRST_PRIORITY = -5 };

extern "C" cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = USUAL_PRIORITY;
    *greatest = FIRST_PRIORITY;
    return cudaSuccess;
}

extern "C" cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags,
                                                    int priority)
{
    return priority > USUAL_PRIORITY || priority < FIRST_PRIORITY
               ? cudaErrorInvalidValue
               : cudaStreamCreateWithFlags(s, flags);
}

extern "C" cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    streams.erase(s);
    delete s;
    return cudaSuccess;
}

extern "C" cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    s = given(s);
    if (s->recording)
        return cudaErrorStreamCaptureUnsupported;
    device_work work;
    while (!drain(s))
        usleep(200);
    return cudaSuccess;
}

void emu::finish_usual(int device)
{
    cudaStreamSynchronize(usual_stream(device));
}

extern "C" cudaError_t cudaMemcpy(void *to, const void *from, size_t n, cudaMemcpyKind k)
{
    cudaStream_t s = usual_stream(device_of(k == cudaMemcpyHostToDevice ? to : from));
    if (captures)
        return cudaErrorStreamCaptureUnsupported;
    auto staged = std::make_shared<std::vector<char>>();
    if (k == cudaMemcpyHostToDevice) {
        const char *bytes = static_cast<const char *>(from);
        staged->assign(bytes, bytes + n);
        from = staged->data();
    }
    emu_put(s, [=] {
        emu_look(from, n, EMU_READ | EMU_COPY, nullptr);
        emu_look(to, n, EMU_WRITE, nullptr);
        memcpy(to, from, staged->empty() ? n : staged->size());
        return true;
    });
    return k == cudaMemcpyHostToDevice ? cudaSuccess : cudaStreamSynchronize(s);
}

extern "C" cudaError_t cudaMemset(void *p, int byte, size_t n)
{
    return captures ? cudaErrorStreamCaptureUnsupported
                    : cudaMemsetAsync(p, byte, n, usual_stream(device_of(p)));
}

extern "C" cudaError_t cudaDeviceSynchronize()
{
    if (captures)
        return cudaErrorStreamCaptureUnsupported;
    for (cudaStream_t s : streams)
        if (s->device == emu_device())
            cudaStreamSynchronize(s);
    return cudaSuccess;
}

extern "C" cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags)
{
    *e = new CUevent_st;
    (*e)->device = emu_device();
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

static double pretended; /* ms that work is said to have taken */

void emu_takes(double ms)
{
    static const bool told = env_number("EMU_TIMES", 0) > 0;
    pretended += told ? ms : 0;
}

static double now_ms()
{
    using namespace std::chrono;
    return pretended +
           duration<double, std::milli>(steady_clock::now().time_since_epoch()).count();
}

/* True if the event was last recorded in a capture that has ended: it is invalid. */
static bool is_past(cudaEvent_t e)
{
    for (cudaStream_t s : streams)
        if (e->recording == s->recording)
            return false;
    return e->recording != nullptr;
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
    s = given(s);
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
    s = given(s);
    if (is_past(e))
        return cudaErrorCapturedEvent;
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

/* It is remembered as every other error is. */
static cudaError_t not_ready()
{
    failed(cudaErrorNotReady);
    return cudaErrorNotReady;
}

/* Never at the first time of asking. */
extern "C" cudaError_t cudaEventQuery(cudaEvent_t e)
{
    if (e->recording)
        return cudaErrorCapturedEvent;
    if (!e->asked) {
        e->asked = true;
        return not_ready();
    }
    /* while it is asked again and again, nothing is unmapped: that takes its time */
    static std::unique_ptr<device_work> held;
    if (!held)
        held = std::make_unique<device_work>();
    for (const op_ref &o : e->at) {
        if (!run(o))
            return not_ready();
        host_past.join(o->at.before);
    }
    held.reset();
    return cudaSuccess;
}

/* Of the stream's device and the host, which waits where its memory is not pinned;
 * cudaMemcpyDefault: of devices it may reach, and pinned memory.
 * There is no cudaMemcpyPeerAsync(): it cannot be recorded. */
extern "C" cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n,
                                       cudaMemcpyKind k, cudaStream_t s)
{
    s = given(s);
    int there = k == cudaMemcpyDeviceToHost ? -1 : s->device;
    int here = k == cudaMemcpyHostToDevice ? -1 : s->device;
    auto may = [&](const void *p) { return reaches(s->device, p) || is_pinned(p); };
    if (k == cudaMemcpyDefault ? !may(to) || !may(from)
                               : device_of(to) != there || device_of(from) != here)
        return cudaErrorInvalidValue;
    emu_put(s, [=] {
        emu_look(from, n, EMU_READ | EMU_COPY, nullptr);
        emu_look(to, n, EMU_WRITE, nullptr);
        memcpy(to, from, n);
        return true;
    });
    bool waits = k == cudaMemcpyDeviceToHost && !s->recording && !is_pinned(to);
    return waits ? cudaStreamSynchronize(s) : cudaSuccess;
}

/* The manual lets only copies go to a stream of another device than the current one. */
extern "C" cudaError_t cudaMemsetAsync(void *p, int byte, size_t n, cudaStream_t s)
{
    s = given(s);
    if (device_of(p) != s->device)
        return cudaErrorInvalidValue;
    if (s->device != emu_device())
        return cudaErrorInvalidResourceHandle;
    emu_put(s, [=] {
        emu_look(p, n, EMU_WRITE, nullptr);
        memset(p, byte, n);
        return true;
    });
    return cudaSuccess;
}

/* ---- graphs ---- */

extern "C" cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode mode)
{
    if (captures || !s)
        return cudaErrorInvalidValue;
    captures++;
    spoilt = getenv("EMU_CAPTURE") != nullptr;
    strict = mode != cudaStreamCaptureModeRelaxed;
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
    *graph = whole && !spoilt ? g : nullptr;
    if (!*graph)
        delete g;
    if (spoilt)
        return cudaErrorStreamCaptureInvalidated;
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
    if (flags & ~(unsigned long long)cudaGraphInstantiateFlagUseNodePriority)
        return cudaErrorInvalidValue;
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
    std::vector<std::vector<size_t>> behind; /* the nodes that wait for it */
    std::vector<size_t> ready;
    std::vector<struct work> at; /* of nodes; once they are done, with themselves */
    play(const CUgraph_st &g)
        : graph(g), waits(g.nodes.size()), behind(g.nodes.size()), at(g.nodes.size())
    {
        graph.kept.clear();
        for (size_t i = 0; i < g.nodes.size(); i++) {
            waits[i] = g.nodes[i].after.size();
            for (size_t before : g.nodes[i].after)
                behind[before].push_back(i);
            if (waits[i] == 0)
                ready.push_back(i);
        }
    }
    bool forgets = env_number("EMU_FORGETS", 0) > 0;
    /* What node i comes after: the graph's launch, and its edges. */
    void place(size_t i, const past &launch)
    {
        if (at[i].id > 0)
            return;
        at[i].before = launch;
        for (size_t before : graph.nodes[i].after) {
            at[i].before.join(at[before].before);
            if (forgets) /* its own stream's is the first */
                break;
        }
        at[i].begin();
    }
    /* Take the k-th of those that are ready. False: it has not finished. */
    bool take(size_t k, struct work *launch)
    {
        size_t i = ready[k];
        place(i, launch->before);
        at_work = &at[i];
        bool over = graph.nodes[i].work();
        at_work = launch;
        if (!over)
            return false;
        at[i].before.add(at[i].id);
        ready.erase(ready.begin() + ptrdiff_t(k));
        for (size_t then : behind[i])
            if (--waits[then] == 0)
                ready.push_back(then);
        return true;
    }
    /* What comes after the launch comes after all of it. */
    void end(struct work *launch)
    {
        for (const struct work &w : at)
            launch->before.join(w.before);
    }
    bool go_on()
    {
        static std::mt19937 dice(unsigned(env_number("EMU_SEED", 1)));
        bool moved = true;
        while (!ready.empty() && moved) {
            std::shuffle(ready.begin(), ready.end(), dice);
            moved = false;
            for (size_t k = 0; k < ready.size() && !moved; k++)
                moved = take(k, at_work);
        }
        if (ready.empty())
            end(at_work);
        return ready.empty();
    }
};

extern "C" cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s)
{
    if (!emu_may_launch("graph"))
        return cudaErrorInvalidConfiguration;
    if (s->device != emu_device())
        return cudaErrorInvalidResourceHandle;
    auto p = std::make_shared<play>(exec->graph);
    put(s, [p] { return p->go_on(); });
    return cudaSuccess;
}
