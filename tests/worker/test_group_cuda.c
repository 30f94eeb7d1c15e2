/* Whose memory is it? When a library for CUDA has been loaded, every thread has to see it
 * at once: also one that asks while another looks. The test is there in the middle of a
 * look, and time stands still. */
#include "tests/support/suite.h"

#include "worker/gpu/libcuda.h"

#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <time.h>

int __real_dl_iterate_phdr(int (*fn)(struct dl_phdr_info *, size_t, void *), void *arg);
int __wrap_dl_iterate_phdr(int (*fn)(struct dl_phdr_info *, size_t, void *), void *arg);
int __wrap_clock_gettime(clockid_t which, struct timespec *t);

static const void *device;
static int looks, others;

int __wrap_clock_gettime(clockid_t which, struct timespec *t)
{
    *t = (struct timespec){.tv_sec = 7};
    return 0;
}

int __wrap_dl_iterate_phdr(int (*fn)(struct dl_phdr_info *, size_t, void *), void *arg)
{
    if (looks++ == 0 && device) /* as another thread would */
        others = cuda_is_device(device);
    return __real_dl_iterate_phdr(fn, arg);
}

TEST(who_asks_while_another_looks_sees_it_too)
{
    int (*alloc)(uint64_t * at, size_t bytes) = NULL;
    uint64_t at = 0;
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    *(void **)&alloc = cuda ? dlsym(cuda, "cuMemAlloc_v2") : NULL;
    ck_assert(alloc && alloc(&at, 4096) == 0);
    device = (const void *)(uintptr_t)at;
    ck_assert(cuda_is_device(device));
    ck_assert_int_gt(looks, 0);
    ck_assert(others);
    ck_assert(!cuda_is_device(&at));
}

TEST(without_it_one_look_is_enough_for_a_while)
{
    int on_host = 0;
    ck_assert(!cuda_is_device(&on_host));
    ck_assert(!cuda_is_device(&on_host));
    ck_assert_int_eq(looks, 1);
}
