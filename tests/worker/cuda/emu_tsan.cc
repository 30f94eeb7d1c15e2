/* tests/worker/cuda/emu_tsan.cc - see emu_check.h: what code calls that is compiled with
 * -fsanitize=thread, at its accesses to memory (the names are the compilers' own) */
#include "tests/worker/cuda/emu_check.h"
#include "tests/worker/cuda/emu_impl.h"

#define FROM __builtin_return_address(0)

/* Accesses to the host's memory outside of kernels, the most frequent, are not checked. */
static inline bool matters(const void *at)
{
    return emu::kernel || emu::on_device(at);
}

static void look(const void *at, size_t bytes, unsigned access, const void *from)
{
    if (emu::kernel && uintptr_t(at) % bytes != 0)
        emu::fault(from, "misaligned: %p is no multiple of %zu bytes", at, bytes);
    emu_look(at, bytes, access, from);
}

/* Of n bytes, on a multiple of it, which the compiler is sure of or not. */
#define ACCESS(n)                                       \
    extern "C" void __tsan_read##n(void *at)            \
    {                                                   \
        if (matters(at))                                \
            look(at, n, EMU_READ, FROM);                \
    }                                                   \
    extern "C" void __tsan_write##n(void *at)           \
    {                                                   \
        if (matters(at))                                \
            look(at, n, EMU_WRITE, FROM);               \
    }                                                   \
    extern "C" void __tsan_unaligned_read##n(void *at)  \
    {                                                   \
        if (matters(at))                                \
            emu_look(at, n, EMU_READ, FROM);            \
    }                                                   \
    extern "C" void __tsan_unaligned_write##n(void *at) \
    {                                                   \
        if (matters(at))                                \
            emu_look(at, n, EMU_WRITE, FROM);           \
    }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)

extern "C" void __tsan_read_range(void *at, size_t bytes)
{
    if (matters(at))
        emu_look(at, bytes, EMU_READ, FROM);
}

extern "C" void __tsan_write_range(void *at, size_t bytes)
{
    if (matters(at))
        emu_look(at, bytes, EMU_WRITE, FROM);
}

extern "C" void __tsan_func_entry(void *) {}
extern "C" void __tsan_func_exit() {}
extern "C" void __tsan_init() {}
extern "C" void __tsan_vptr_read(void **) {}
extern "C" void __tsan_vptr_update(void **at, void *now) {}
