/* tests/worker/cuda/test_check.cc - what is wrong with these kernels is seen: each of
 * them has one fault that a device would not tell of, or not always (emu_check.h)
 *
 * All are run several times, in other orders of threads and blocks.
 */
#include "tests/worker/cuda/emu_check.h"
#include "worker/cuda/device.h"

#include <cstdio>
#include <cstring>
#include <string>

static cudaStream_t one, two;
static cudaEvent_t event;
static int failures;
enum { N = 1000, TURNS = 5 };

/* ---- kernels with a fault, and some without ---- */

static __global__ void no_barrier(float *to)
{
    __shared__ float words[THREADS];
    words[threadIdx.x] = 1;
    to[threadIdx.x] = words[(threadIdx.x + 1) % THREADS];
}

/* As if a warp went in step. */
static __global__ void warp_in_step(float *to)
{
    __shared__ float words[THREADS];
    words[threadIdx.x] = 1;
    __syncthreads();
    for (unsigned step = 16; step > 0; step /= 2)
        if (threadIdx.x < step)
            words[threadIdx.x] += words[threadIdx.x + step];
    if (threadIdx.x == 0)
        *to = words[0];
}

static __global__ void used_again_too_early(float *to)
{
    __shared__ float word;
    for (int i = 0; i < 3; i++) {
        if (threadIdx.x == 0)
            word = float(i);
        __syncthreads();
        to[threadIdx.x] = word;
    }
}

static __global__ void used_again(float *to)
{
    __shared__ float word;
    for (int i = 0; i < 3; i++) {
        if (threadIdx.x == unsigned(i))
            word = float(i);
        __syncthreads();
        to[threadIdx.x] = word;
        __syncthreads();
    }
}

static __global__ void all_blocks_write(float *to)
{
    if (threadIdx.x == 0)
        *to = 1;
}

static __global__ void all_blocks_exchange(float *to)
{
    atomicExch(to, 1.0f);
}

static __global__ void another_block_reads(float *to)
{
    if (blockIdx.x == 1)
        to[threadIdx.x] = 1;
    else
        to[THREADS + threadIdx.x] = to[threadIdx.x];
}

/* Elements of one byte beside each other are not shared. */
static __global__ void bytes(uint8_t *to)
{
    uint32_t i = blockIdx.x + threadIdx.x * gridDim.x;
    to[i] = 1;
}

static __global__ void barrier_for_some(float *to)
{
    if (threadIdx.x % 32 < 16)
        __syncthreads();
    to[threadIdx.x] = 1;
}

static __global__ void barrier_unless_done(float *to)
{
    if (threadIdx.x == 0)
        return;
    __syncthreads();
    to[threadIdx.x] = 1;
}

static __global__ void two_barriers(float *to)
{
    if (threadIdx.x < 32)
        __syncthreads();
    else
        __syncthreads();
    to[threadIdx.x] = 1;
}

static __global__ void shared_unwritten(float *to)
{
    __shared__ float words[THREADS];
    if (threadIdx.x > 0)
        words[threadIdx.x] = 1;
    __syncthreads();
    to[threadIdx.x] = words[THREADS - 1 - threadIdx.x];
}

/* What a block before this one has left. */
static __global__ void shared_left(float *to)
{
    __shared__ float word;
    if (threadIdx.x == 0 && blockIdx.x == 1)
        word = 1;
    __syncthreads();
    if (blockIdx.x == 0)
        to[threadIdx.x] = word;
}

static __global__ void fill(float *to, int n)
{
    for (EACH(i, n))
        to[i] = 1;
}

static __global__ void sum(const float *from, int n, float *to)
{
    __shared__ double room[THREADS];
    double x = 0;
    for (int i = int(threadIdx.x); i < n; i += THREADS)
        x += double(from[i]);
    x = block_sum(x, room);
    if (threadIdx.x == 0)
        *to = float(x);
}

template <class T> static __global__ void four(const T *from, T *to)
{
    float v[4];
    load<4>(from, v);
    store<4>(v, to);
}

/* A CPU would not take sixteen bytes from there either. */
static __global__ void two_at_once(const float *from, float *to)
{
    *reinterpret_cast<uint64_t *>(to) = *reinterpret_cast<const uint64_t *>(from);
}

static __global__ void through(float **at)
{
    (*at)[threadIdx.x] = 1;
}

struct much {
    char of[5000];
};
static __global__ void with_much(struct much m, float *to)
{
    *to = m.of[0];
}

/* ---- what is said ---- */

static void *device_bytes(size_t bytes)
{
    void *p = nullptr;
    cudaMalloc(&p, bytes);
    return p;
}

/* `what` puts work on streams; one of its faults has these words, or there are none. */
static void expect(const char *name, const char *words, const std::function<void()> &what)
{
    for (int turn = 0; turn < TURNS; turn++) {
        std::vector<std::string> faults;
        emu_collect(&faults);
        what();
        cudaDeviceSynchronize();
        emu_collect(nullptr);
        bool good = !words && faults.empty();
        for (const std::string &f : faults)
            good = good || (words && f.find(words) != std::string::npos);
        if (good)
            continue;
        failures++;
        printf("FAILED %s, wanted %s%s\n", name, words ? words : "nothing",
               faults.empty() ? "; nothing was said" : ":");
        for (const std::string &f : faults)
            printf("    %s\n", f.c_str());
    }
}

#define RUN(kernel, blocks, ...) \
    [=] { PUT_KERNEL(kernel, blocks, THREADS, one, __VA_ARGS__); }

static void within_a_block(float *to)
{
    expect("no barrier", "race: ", RUN(no_barrier, 1, to));
    expect("a warp in step", "race: ", RUN(warp_in_step, 1, to));
    expect("used again too early", "race: writes shared memory",
           RUN(used_again_too_early, 1, to));
    expect("used again", nullptr, RUN(used_again, 1, to));
    expect("a sum", nullptr, RUN(sum, 1, to, N, to + N));
    const char *ended = "has ended", *waits = "waits at ";
    expect("a barrier for some", ended, RUN(barrier_for_some, 1, to));
    expect("a barrier unless done", ended, RUN(barrier_unless_done, 1, to));
    expect("two barriers", waits, RUN(two_barriers, 1, to));
    const char *unwritten = "reads shared memory that was not written";
    expect("shared, unwritten", unwritten, RUN(shared_unwritten, 1, to));
    expect("shared, left", unwritten, RUN(shared_left, 2, to));
}

static void between_blocks(float *to)
{
    expect("blocks that write", "race: writes memory", RUN(all_blocks_write, 3, to));
    expect("blocks that exchange", nullptr, RUN(all_blocks_exchange, 3, to));
    expect("a block reads another's", "race: ", RUN(another_block_reads, 2, to));
    uint8_t *some = reinterpret_cast<uint8_t *>(to);
    expect("neighbours' bytes", nullptr, RUN(bytes, 3, some));
}

static void addresses(float *to)
{
    __half *halves = reinterpret_cast<__half *>(to);
    const char *misaligned = "misaligned: ", *outside = "outside of what is allocated";
    expect("aligned", nullptr,
           [=] { PUT_KERNEL(four<__half>, 1, 1, one, halves, halves + 4); });
    expect("misaligned", misaligned,
           [=] { PUT_KERNEL(four<__half>, 1, 1, one, halves + 1, halves + 4); });
    expect("misaligned, by hand", misaligned,
           [=] { PUT_KERNEL(two_at_once, 1, 1, one, to, to + 3); });
    float *few = static_cast<float *>(device_bytes(N * sizeof(float)));
    expect("all of it", nullptr, RUN(fill, 2, few, N));
    expect("one more", outside, RUN(fill, 2, few, N + 1));
    cudaFree(few);
    expect("freed", outside, RUN(fill, 2, few, N));
    expect("unwritten", "reads memory that was not written", [=] {
        float *fresh = static_cast<float *>(device_bytes(N * sizeof(float)));
        PUT_KERNEL(fill, 1, THREADS, one, fresh, N - 1);
        PUT_KERNEL(sum, 1, THREADS, one, fresh, N, to);
    });
    std::vector<float> host(THREADS);
    float *of_host = host.data(), **at = static_cast<float **>(device_bytes(sizeof *at));
    cudaMemcpy(at, &of_host, sizeof of_host, cudaMemcpyHostToDevice);
    cudaDeviceSynchronize();
    expect("the host's", "which is the host's", RUN(through, 1, at));
}

/* Two works on two streams; `waits`: the second for the first. */
static void both_write(float *to, bool waits, bool copy)
{
    PUT_KERNEL(fill, 2, THREADS, one, to, N);
    cudaEventRecord(event, one);
    if (waits)
        cudaStreamWaitEvent(two, event, 0);
    if (copy)
        cudaMemcpyAsync(to + N, to, 4, cudaMemcpyDeviceToDevice, two);
    else
        PUT_KERNEL(sum, 1, THREADS, two, to, N, to + N);
}

static void played(float *to, bool waits)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaStreamBeginCapture(one, cudaStreamCaptureModeThreadLocal);
    cudaEventRecord(event, one);
    cudaStreamWaitEvent(two, event, 0); /* now it is recorded, too */
    both_write(to, waits, false);
    cudaEventRecord(event, two);
    cudaStreamWaitEvent(one, event, 0);
    cudaStreamEndCapture(one, &graph);
    cudaGraphInstantiate(&exec, graph, 0);
    cudaGraphLaunch(exec, one);
    PUT_KERNEL(fill, 1, THREADS, one, to, N); /* behind all of it */
    cudaStreamSynchronize(one);
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
}

static void between_streams(float *to)
{
    const char *race = "in no order with this one";
    for (bool copy : {false, true}) {
        expect("two streams", race, [=] { both_write(to, false, copy); });
        expect("two streams and an event", nullptr, [=] { both_write(to, true, copy); });
    }
    expect("the host waits", nullptr, [=] {
        PUT_KERNEL(fill, 2, THREADS, one, to, N);
        cudaStreamSynchronize(one);
        PUT_KERNEL(fill, 2, THREADS, two, to, N);
    });
    expect("the host does not", race, [=] {
        PUT_KERNEL(sum, 1, THREADS, one, to, N, to + N);
        cudaMemset(to, 0, 4);
    });
    expect("a graph", race, [=] { played(to, false); });
    expect("a graph with an edge", nullptr, [=] { played(to, true); });
}

static void launches(float *to)
{
    auto refused = [](const char *name, bool wanted) {
        bool is = cudaGetLastError() == cudaErrorInvalidConfiguration;
        failures += is != wanted;
        if (is != wanted)
            printf("FAILED %s: %s\n", name, is ? "refused" : "taken");
    };
    PUT_KERNEL(fill, 0, THREADS, one, to, N);
    refused("no blocks", true);
    PUT_KERNEL(fill, int64_t(1) << 31, THREADS, one, to, N);
    refused("too many blocks", true);
    PUT_KERNEL(fill, 1, 1025, one, to, N);
    refused("too many threads", true);
    struct much m = {};
    PUT_KERNEL(with_much, 1, 1, one, m, to);
    refused("too many parameters", true);
    PUT_KERNEL(fill, 1, 1024, one, to, N);
    refused("as many threads as there can be", false);
    cudaDeviceSynchronize();
}

static void streams_and_events(float *to)
{
    auto refused = [](const char *name, cudaError_t rc) {
        failures += rc == cudaSuccess;
        if (rc == cudaSuccess)
            printf("FAILED %s: taken\n", name);
    };
    cudaGraph_t graph;
    cudaStreamBeginCapture(one, cudaStreamCaptureModeRelaxed);
    cudaEventRecord(event, one);
    cudaStreamEndCapture(one, &graph);
    cudaGraphDestroy(graph);
    refused("waiting for an event of a recording", cudaStreamWaitEvent(two, event, 0));
    refused("asking for an event of a recording", cudaEventQuery(event));
    cudaSetDevice(1);
    refused("setting another device's memory", cudaMemsetAsync(to, 0, 4, one));
    cudaSetDevice(0);
}

int main()
{
    cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&two, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    float *to = static_cast<float *>(device_bytes(2 * N * sizeof(float)));
    cudaMemset(to, 0, 2 * N * sizeof(float));
    within_a_block(to);
    between_blocks(to);
    addresses(to);
    between_streams(to);
    launches(to);
    streams_and_events(to);
    printf("%s\n", failures ? "FAILED" : "ok");
    return failures ? 1 : 0;
}
