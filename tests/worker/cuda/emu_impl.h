/* tests/worker/cuda/emu_impl.h - see emu.h: what the files of the runtime's stand-in
 * share
 *
 * emu_devices.cc gives it; emu_streams.cc puts work in order and has the recordings,
 * emu_launch.cc runs kernels, emu_check.cc looks at what they touch.
 */
#ifndef EMU_IMPL_H
#define EMU_IMPL_H

#include "tests/worker/cuda/emu.h"

/* Hidden: none of these names may take the place of one of the program under test. */
#pragma GCC visibility push(hidden)

namespace emu {
enum { DEVICES = 16 };
static const size_t PAGE = 4096, RESERVED = size_t(1) << 32; /* addresses of a device */

/* A number of the environment; nothing there: `otherwise`. */
size_t env_number(const char *name, size_t otherwise);

/* Recordings under way: nothing is allocated, or waited for, meanwhile. */
extern int captures;

/* The addresses of all devices' memory, one device after the other. */
extern char *arena;
static inline size_t arena_offset(const void *p)
{
    return size_t(static_cast<const char *>(p) - arena);
}
static inline bool on_device(const void *p)
{
    return arena && arena_offset(p) < DEVICES * RESERVED;
}

/* Whose memory it is; -1: the host's. */
static inline int device_of(const void *p)
{
    return on_device(p) ? int(arena_offset(p) / RESERVED) : -1;
}

/* May work on this device touch what lies there? */
bool reaches(int device, const void *p);
bool is_pinned(const void *p);
/* Bits: the device, and those whose memory it has been told that it may use. */
unsigned reachable(int device);

/* From now on only the memory of these devices can be touched (bits). */
void map_only(unsigned devices);

/* Wait for what was put on no stream of the device. */
void finish_usual(int device);

/* While one lives, what work maps stays mapped. */
struct device_work {
    device_work();
    ~device_work();
};

/* What cudaGetLastError() will say. */
void failed(cudaError_t rc);

/* ---- the order of work ---- */

/* A set of works, by number (they count from 1): all below `first`, and those that have a
 * bit. */
struct past {
    uint32_t first = 1;
    std::vector<uint64_t> bits;
    bool has(uint32_t id) const;
    void add(uint32_t id);
    void join(const past &other);
    void close();
};

/* A kernel, a copy, a product, once: its number, and all works that are over before it
 * can begin. Numbers count from 1. */
struct work {
    uint32_t id = 0;
    past before;
    void begin(); /* takes the next number, if it has none */
};
extern struct work *at_work;

/* What the host has waited for; and a copy of the host's own. */
extern past host_past;
struct host_work {
    struct work of;
    host_work();
    ~host_work();
};

/* ---- checks (emu_check.h) ---- */

void allocated(const void *p, size_t bytes);
void freed(const void *p, size_t bytes);

/* A kernel at work, and the thread that has its turn. */
struct kernel_at {
    const char *name;
    const char *parameters;
    size_t parameter_bytes;
    const char *stack; /* of the thread */
    size_t stack_bytes;
    const void *code;      /* somewhere in it */
    uint32_t block, phase; /* barriers that the block has passed */
    uint32_t thread;
};
extern struct kernel_at *kernel;

/* Of one place in the program; what is seen there again is not told again. */
void fault(const void *from, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
} // namespace emu

#pragma GCC visibility pop

#endif
