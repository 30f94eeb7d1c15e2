/* tests/worker/cuda/emu.h - a GPU made of a CPU: enough of CUDA to run the engine's code
 *
 * The engine's own files, host code and kernels, are compiled as they are and linked with
 * this instead of the CUDA libraries: emu_devices.cc, emu_streams.cc, emu_launch.cc,
 * emu_cublaslt.cc, emu_cudnn.cc, emu_cudnn_graph.cc (naive loops behind the real
 * prototypes and checks of what they are given), emu_nccl.cc (a libnccl.so.2 that sums
 * through shared memory).
 * What it proves: formulas, shapes, the order of work, ids, errors. What it cannot:
 * anything about time, or about races within a kernel.
 *
 * It is unkind where a GPU may be:
 *   - nothing runs before somebody waits for it, and then only what that needs;
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
/* What a library's usual algorithm takes then: far more than anybody is held up. */
enum { EMU_USUAL_MS = 100000 };

/* Put work on a stream. Returns false: not finished, to be called again. */
void emu_put(cudaStream_t stream, std::function<bool()> work);

/* A graph that is being recorded there keeps this until it is destroyed. */
void emu_keep(cudaStream_t stream, std::shared_ptr<void> what);

/* Before a kernel is launched: CUDA loads it when that is the first time, and not while a
 * graph is being recorded, unless in the relaxed mode. */
void emu_load(cudaStream_t stream, const void *kernel);
/* Run what is on all streams, as far as it goes. False: something has not finished. */
bool emu_drained();

/* No fault is asked for at this launch; else it has failed. */
bool emu_may_launch(const char *kernel);

/* Run `kernel` for all threads of all blocks, one block after another. */
void emu_launch(cudaStream_t stream, int blocks, int threads,
                std::function<void()> kernel);

struct emu_index {
    unsigned x;
};
extern struct emu_index emu_thread, emu_block, emu_block_size, emu_grid_size;
void emu_sync_threads();
/* On a multiple of `bytes`, or it is a misaligned address, and the end. */
void emu_must_lie(const void *at, size_t bytes);

#ifdef EMU_KERNELS
#include <cmath>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#define __global__
#define __device__
#define __host__
#define __shared__          static /* one block at a time, in one thread */
#define threadIdx           emu_thread
#define blockIdx            emu_block
#define blockDim            emu_block_size
#define gridDim             emu_grid_size
#define __syncthreads       emu_sync_threads
#define MUST_LIE(at, bytes) emu_must_lie(at, bytes)
#define PUT_KERNEL(kernel, blocks, threads, stream, ...)                          \
    (emu_may_launch(#kernel) ? (emu_load(stream, (const void *)(kernel)),         \
                                emu_launch(stream, (int)(blocks), (int)(threads), \
                                           [=] { kernel(__VA_ARGS__); }))         \
                             : (void)0)
#endif

#endif
