/* tests/worker/cuda/emu_launch.cc - see emu.h: kernels, a block's threads taking turns */
#include "tests/worker/cuda/emu_check.h"
#include "tests/worker/cuda/emu_impl.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <setjmp.h>
#include <string>
#include <sys/mman.h>
#include <ucontext.h>
#include <vector>

using namespace emu;

struct emu_index emu_indices[EMU_INDICES];

/* Threads of a block that meet at __syncthreads() are contexts with stacks of their own,
 * which take turns. They are entered by makecontext() and then changed by _longjmp(),
 * which asks nothing of the kernel. */
static const size_t STACK = 64 << 10;
static const unsigned MOST_THREADS = 1024;
static ucontext_t entry;
static jmp_buf scheduler;
struct emu_context {
    jmp_buf at;
    bool begun, finished;
    const char *waits; /* at which barrier */
};
static std::vector<emu_context> contexts;
static char *stacks; /* unused pages are not allocated */
static const struct emu_kernel *running;
static struct kernel_at state;
static bool in_context, synced;
static bool any_now, any; /* of the threads at the barrier; at the one before */

static void thread_main()
{
    for (;;) { /* a kernel each time it is resumed */
        running->call(running->closure);
        contexts[state.thread].finished = true;
        if (_setjmp(contexts[state.thread].at) == 0)
            _longjmp(scheduler, 1);
    }
}

int emu_sync_threads(const char *where, bool mine)
{
    synced = true;
    any_now |= mine;
    if (!in_context) {
        fault(where, "waits at %s, to which thread 0 has not come", where);
        return 0;
    }
    contexts[state.thread].waits = where;
    if (_setjmp(contexts[state.thread].at) == 0)
        _longjmp(scheduler, 1);
    return any;
}

void emu_must_lie(const void *at, size_t bytes)
{
    if (reinterpret_cast<uintptr_t>(at) % bytes != 0)
        fault(__builtin_return_address(0), "misaligned: %p is no multiple of %zu bytes",
              at, bytes);
}

float emu_exchange(float *at, float v)
{
    if (running->checked)
        emu_look(at, sizeof v, EMU_WRITE | EMU_ATOMIC, __builtin_return_address(0));
    std::swap(*at, v);
    return v;
}

static void pipeline_step_at(unsigned t)
{
    state.thread = emu_indices[EMU_THREAD].x = t;
    state.stack = stacks + t * STACK;
}

static void resume(unsigned t)
{
    pipeline_step_at(t);
    in_context = true;
    if (_setjmp(scheduler) == 0)
        _longjmp(contexts[t].at, 1);
    in_context = false;
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
    pipeline_step_at(t);
    in_context = true;
    if (_setjmp(scheduler) == 0)
        setcontext(&entry);
    in_context = false;
}

/* All have had their turn: have they come to the same barrier, or all to the end? */
static bool all_wait(unsigned threads)
{
    const emu_context &first = contexts[0];
    for (unsigned t = 1; t < threads; t++) {
        const emu_context &c = contexts[t];
        state.thread = c.finished ? 0 : t;
        if (c.finished != first.finished)
            fault(c.finished ? first.waits : c.waits,
                  "waits at %s, while thread %u has ended",
                  c.finished ? first.waits : c.waits, c.finished ? t : 0);
        else if (!c.finished && c.waits != first.waits)
            fault(c.waits, "waits at %s, while thread 0 waits at %s", c.waits,
                  first.waits);
    }
    state.phase++;
    any = any_now;
    any_now = false;
    return !std::all_of(contexts.begin(), contexts.begin() + threads,
                        [](const emu_context &c) { return c.finished; });
}

static std::mt19937 &dice()
{
    static std::mt19937 drawn(unsigned(env_number("EMU_SEED", 1)));
    return drawn;
}

/* From barrier to barrier, in a random order if accesses are checked. */
static void run_rounds(unsigned threads)
{
    static std::vector<unsigned> turns;
    turns.resize(threads);
    for (unsigned t = 0; t < threads; t++)
        turns[t] = t;
    if (running->checked)
        std::shuffle(turns.begin(), turns.end(), dice());
    for (unsigned t : turns)
        if (running->checked || t > 0)
            start_thread(t);
    while (all_wait(threads))
        for (unsigned t : turns)
            if (!contexts[t].finished)
                resume(t);
}

static void run_block(unsigned block)
{
    unsigned threads = unsigned(running->threads);
    if (contexts.empty()) { /* no block has more; they stay where they are */
        contexts.resize(MOST_THREADS);
        stacks = static_cast<char *>(
            mmap(nullptr, MOST_THREADS * STACK, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    }
    emu_indices[EMU_BLOCK].x = state.block = block;
    state.phase = 0;
    synced = false;
    if (!running->checked) {
        start_thread(0);
        for (unsigned t = 1; t < threads && !synced;
             t++) { /* no thread waits: plain calls */
            pipeline_step_at(t);
            running->call(running->closure);
        }
        if (!synced || contexts[0].finished)
            return;
    }
    run_rounds(threads);
}

static void run_kernel(const struct emu_kernel &k)
{
    std::vector<unsigned> blocks(size_t(k.blocks));
    for (unsigned b = 0; b < blocks.size(); b++)
        blocks[b] = b;
    if (k.checked)
        std::shuffle(blocks.begin(), blocks.end(), dice());
    running = &k;
    state = {};
    state.name = k.name;
    state.parameters = static_cast<const char *>(k.closure);
    state.parameter_bytes = k.bytes;
    state.stack_bytes = STACK;
    state.code = reinterpret_cast<const void *>(k.call);
    emu::kernel = &state;
    emu_indices[EMU_GRID_SIZE].x = unsigned(k.blocks);
    emu_indices[EMU_BLOCK_SIZE].x = unsigned(k.threads);
    for (unsigned b : blocks)
        run_block(b);
    emu::kernel = nullptr;
}

/* What a driver does not take: cudaErrorInvalidConfiguration on a device. */
static bool fits(const struct emu_kernel &k)
{
    const size_t MOST_PARAMETERS = 4096; /* bytes; more since CUDA 12.1, and not always */
    if (k.blocks >= 1 && k.blocks <= INT32_MAX && k.threads >= 1 &&
        k.threads <= MOST_THREADS && k.given <= MOST_PARAMETERS)
        return true;
    fprintf(stderr, "emulation: kernel %s: %lld blocks of %lld threads, %zu bytes\n",
            k.name, (long long)k.blocks, (long long)k.threads, k.given);
    failed(cudaErrorInvalidConfiguration);
    return false;
}

void emu_launch(cudaStream_t stream, const struct emu_kernel &given)
{
    if (emu_device_of(stream) != emu_device()) {
        failed(cudaErrorInvalidResourceHandle);
        return;
    }
    if (!fits(given))
        return;
    const char *closure = static_cast<const char *>(given.closure);
    std::vector<char> parameters(closure, closure + given.bytes);
    emu_put(stream, [=] {
        struct emu_kernel k = given;
        k.closure = parameters.data();
        run_kernel(k);
        return true;
    });
}
