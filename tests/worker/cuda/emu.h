/* tests/worker/cuda/emu.h - a GPU made of a CPU: enough of CUDA to run the engine's code
 *
 * The engine's own files, host code and kernels, are compiled as they are and linked with
 * this instead of the CUDA libraries: emu_devices.cc, emu_streams.cc, emu_launch.cc,
 * emu_cublaslt.cc, emu_cudnn.cc, emu_cudnn_graph.cc (naive loops behind the real
 * prototypes and checks of what they are given), emu_nccl.cc (a libnccl.so.2 that sums
 * through shared memory).
 * What it proves: formulas, shapes, the order of work, ids, errors, and with kernels that
 * tell of their accesses (emu_check.h) the absence of races in what was run. What it
 * cannot: anything about time.
 *
 * It is unkind where a GPU may be:
 *   - nothing runs before somebody waits for it, and then only what that needs;
 *   - what is copied to the device or set there without a stream has happened when the
 *     device has been waited for, or something has been read without a stream;
 *   - libraries load what they need when they are first asked for it, and refuse that
 *     while a graph is being recorded;
 *   - a recorded graph is played in any order that its dependencies allow;
 *   - the host cannot touch device memory, and no device another's, unless it has been
 *     told that it may: only what is at work is mapped;
 *   - streams, events and the libraries' handles belong to the device that was current,
 *     and are refused with another one;
 *   - nothing is allocated, or waited for, while a graph is being recorded;
 *   - NCCL does not let go of a communicator while there is a graph with a collective of
 *     it, not even when it is aborted;
 *   - every refusal stays behind as the last error, that something is not ready, too;
 *   - of the algorithms that the libraries offer some give other bits each time, some the
 *     wrong answer, and some fail when it is too late.
 *
 * Force-included in the .cu files, where it also is CUDA's language.
 */
#ifndef EMU_H
#define EMU_H

#include <cstdint>
#include <cuda_runtime_api.h>
#include <functional>
#include <memory>
#include <type_traits>
#include <vector>

/* May a library be asked for this product on that stream? What is asked for the first
 * time has to be loaded, which cannot be while a graph is being recorded. */
bool emu_may_ask(cudaStream_t stream, const std::vector<int64_t> &product);

/* Is a graph being recorded? */
bool emu_recording();

/* The current device; a stream's. */
int emu_device();
int emu_device_of(cudaStream_t stream);

/* Work that runs has taken so long, as events will tell, if there is EMU_TIMES=1: on a
 * CPU the time that something takes says nothing. */
void emu_takes(double ms);
/* What a library's usual algorithm takes then: far more than any test waits. */
enum { EMU_USUAL_MS = 100000 };

/* Put work on a stream. Returns false: not finished, to be called again. */
void emu_put(cudaStream_t stream, std::function<bool()> work);

bool emu_records(cudaStream_t stream);
/* A graph that is being recorded there keeps this until it is destroyed. */
void emu_keep(cudaStream_t stream, std::shared_ptr<void> what);

/* Before a kernel is launched: CUDA loads it when that is the first time, and not while a
 * graph is being recorded, unless in the relaxed mode. */
void emu_load(cudaStream_t stream, const void *kernel);
/* Run what is on all streams, as far as it goes. False: something has not finished. */
bool emu_drained();

/* No fault is asked for at this launch; else it has failed. */
bool emu_may_launch(const char *kernel);

/* A kernel's launch. Its parameters are the bytes at `closure`, with which `call` runs
 * one thread; `given`: as many as the kernel's own list of them takes. `checked`: it
 * tells of each access to memory (emu_check.h). */
struct emu_kernel {
    const char *name;
    int64_t blocks, threads;
    size_t given;
    bool checked;
    const void *closure;
    size_t bytes;
    void (*call)(const void *closure);
};
void emu_launch(cudaStream_t stream, const struct emu_kernel &kernel);

/* Which thread it is, of what. */
struct emu_index {
    unsigned x;
};
enum { EMU_THREAD, EMU_BLOCK, EMU_BLOCK_SIZE, EMU_GRID_SIZE, EMU_INDICES };
extern struct emu_index emu_indices[EMU_INDICES];
/* `where`: in the source. All threads of a block meet at the same place. Returns 1 if
 * `mine` is true in any of them. */
int emu_sync_threads(const char *where, bool mine = false);
/* On a multiple of `bytes`, or it is a misaligned address, and the end. */
void emu_must_lie(const void *at, size_t bytes);
float emu_exchange(float *at, float v);

#ifdef EMU_KERNELS
#include <cmath>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
/* gcc does not tell of what a function that is called returns to memory */
#ifdef EMU_CHECKED
#define __global__ __attribute__((flatten))
#else
#define __global__
#endif
#define __device__
#define __host__
#define __shared__          static /* one block at a time, in one thread */
#define threadIdx           emu_indices[EMU_THREAD]
#define blockIdx            emu_indices[EMU_BLOCK]
#define blockDim            emu_indices[EMU_BLOCK_SIZE]
#define gridDim             emu_indices[EMU_GRID_SIZE]
#define EMU_TEXT(x)         #x
#define EMU_NUMBER(x)       EMU_TEXT(x)
#define __syncthreads()     emu_sync_threads(__FILE__ ":" EMU_NUMBER(__LINE__))
#define __syncthreads_or(x) emu_sync_threads(__FILE__ ":" EMU_NUMBER(__LINE__), x)
#define atomicExch(at, v)   emu_exchange(at, v)
#define MUST_LIE(at, bytes) emu_must_lie(at, bytes)

static inline int min(int a, int b)
{
    return b < a ? b : a;
}

static inline unsigned min(unsigned a, unsigned b)
{
    return b < a ? b : a;
}

/* Bytes of a kernel's parameters, each on a multiple of what it needs. */
template <class... P> constexpr size_t emu_given(void (*)(P...))
{
    size_t at = 0;
    ((at = (at + alignof(P) - 1) / alignof(P) * alignof(P) + sizeof(P)), ...);
    return at;
}

template <class F>
static inline void emu_put_kernel(cudaStream_t stream, const void *kernel,
                                  struct emu_kernel k, const F &f)
{
    static_assert(std::is_trivially_copyable<F>::value, "parameters travel as bytes");
#ifdef EMU_CHECKED
    k.checked = true;
#endif
    k.closure = &f;
    k.bytes = sizeof f;
    k.call = [](const void *at) { (*static_cast<const F *>(at))(); };
    if (!emu_may_launch(k.name))
        return;
    emu_load(stream, kernel);
    emu_launch(stream, k);
}
#define PUT_KERNEL(kernel, blocks, threads, stream, ...)          \
    emu_put_kernel(stream, (const void *)(kernel),                \
                   {#kernel, blocks, threads, emu_given(kernel)}, \
                   [](auto... a) { return [=] { kernel(a...); }; }(__VA_ARGS__))
#endif

#endif
