/* tests/worker/cuda/emu_check.h - races, bounds, first reads and barriers, on a GPU made
 * of a CPU: what compute-sanitizer's four tools look for on a real one
 *
 * Kernels that are compiled with -fsanitize=thread call a function (__tsan_read4() and
 * the like) at every access to memory. Here these functions are our own (emu_tsan.cc),
 * not ThreadSanitizer's: that one knows what orders threads of a host. They hold each
 * access against what is remembered of each byte, by what CUDA orders and nothing else:
 *   - threads of a block, from one __syncthreads() to the next: two of them may not touch
 *     the same byte, unless both read it, or both do so by atomic operations;
 *   - blocks of a grid: at no time;
 *   - kernels, copies, products of the libraries: in the order of their streams, of
 * events that were waited for, of edges of a graph, and of what the host has waited for.
 * So a race is seen whichever way round it has happened to go, and the turn that threads
 * and blocks have is drawn (EMU_SEED). A fault is also
 *   - an access outside of what was allocated, to freed memory, the host's or another
 *     thread's own, or not on a multiple of its size;
 *   - a read of what was not written: of shared memory in this block;
 *   - a barrier that some threads of a block do not come to.
 *
 * Of readers, the last one in this kernel is remembered, whether there were others in its
 * block since the barrier, whether there were other blocks, and one other kernel.
 */
#ifndef EMU_CHECK_H
#define EMU_CHECK_H

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

/* Where faults go from now on, each once for each place in the program; nullptr: to
 * stderr, and the first is the end. */
void emu_collect(std::vector<std::string> *faults);

/* Accesses in the work that is under way; outside of it they are not looked at. */
enum emu_access { EMU_READ = 1, EMU_WRITE = 2, EMU_ATOMIC = 4, EMU_COPY = 8 };
void emu_look(const void *at, size_t bytes, unsigned access, const void *from);

#endif
