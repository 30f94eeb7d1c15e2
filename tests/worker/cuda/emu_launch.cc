/* tests/worker/cuda/emu_launch.cc - see emu.h: kernels, a block's threads taking turns */
#include "tests/worker/cuda/emu_impl.h"

#include <cstdio>
#include <cstdlib>
#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <vector>

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
    if (emu_device_of(stream) != emu_device()) {
        emu::failed(cudaErrorInvalidResourceHandle);
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
