/* worker/gpu/libcuda.c - see libcuda.h */
#include "worker/gpu/libcuda.h"

#include "common/err.h"
#include "common/mem.h"
#include "common/symbols.h"

#include <link.h>
#include <pthread.h>
#include <stdint.h>
#include <time.h>

enum { MEMORY_TYPE = 2, IS_MANAGED = 8, DEVICE = 2 };

struct cuda_api cuda_api;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static bool find_all(void *library)
{
#define SYMBOL(symbol, name, parameters) {#symbol, &cuda_api.name},
    static const struct symbol names[] = {CUDA_FUNCTIONS(SYMBOL)};
    if (symbols_find(library, names, ARRAY_LEN(names)))
        return false;
    /* published last: all functions were stored before */
    __atomic_store_n(&cuda_api.library, library, __ATOMIC_RELEASE);
    return true;
}

/* The number of objects loaded so far: the search is repeated only if it has changed. */
static int count_loads(struct dl_phdr_info *info, size_t size, void *adds)
{
    *(unsigned long long *)adds = info->dlpi_adds;
    return 1;
}

/* dl_iterate_phdr() takes a lock, which also waits until earlier writes have reached
 * the other CPUs: a third of the time of a short message. The coarse clock, which
 * advances by some milliseconds, is read without a lock; loading CUDA and getting
 * memory from it takes many ticks. */
static int64_t tick(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Has the library been loaded by now? A search without a result is valid for the tick
 * in which it began; it is recorded after its end, so that no other thread relies on
 * an unfinished one. */
static void *look_for_library(void)
{
    static int64_t looked_in;
    static unsigned long long looked_at;
    unsigned long long adds = 0;
    int64_t now = tick();
    if (now == __atomic_load_n(&looked_in, __ATOMIC_ACQUIRE))
        return NULL;
    dl_iterate_phdr(count_loads, &adds);
    void *found = NULL;
    pthread_mutex_lock(&lock);
    if (cuda_api.library || adds != looked_at) {
        found = cuda_api.library ? cuda_api.library
                                 : dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
        if (found && !cuda_api.library && !find_all(found))
            found = NULL;
        looked_at = adds;
    }
    if (!found)
        __atomic_store_n(&looked_in, now, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&lock);
    return found;
}

bool cuda_is_device(const void *p)
{
    if (!__atomic_load_n(&cuda_api.library, __ATOMIC_ACQUIRE) && !look_for_library())
        return false;
    int type = 0, managed = 0;
    uint64_t address = (uint64_t)(uintptr_t)p;
    if (cuda_api.get_attribute(&type, MEMORY_TYPE, address) != 0 || type != DEVICE)
        return false;
    return cuda_api.get_attribute(&managed, IS_MANAGED, address) != 0 || !managed;
}

/* ---- interface ---- */

int cuda_check(int rc, const char *what, struct ddp_err *err)
{
    const char *name = "?";
    if (rc == 0)
        return 0;
    cuda_api.error_name(rc, &name);
    return err_set(err, "%s: %s", what, name ? name : "?");
}

int cuda_open(int device, struct ddp_err *err)
{
    pthread_mutex_lock(&lock);
    bool found = cuda_api.library != NULL;
    if (!found) {
        void *library = dlopen("libcuda.so.1", RTLD_NOW);
        found = library && find_all(library);
    }
    pthread_mutex_unlock(&lock);
    if (!found)
        return err_set(err, "there is no CUDA driver on this machine (libcuda.so.1)");
    void *context = NULL;
    int number;
    TRY(cuda_check(cuda_api.init(0), "cuInit", err));
    if (cuda_api.context(&context) == 0 && context)
        return 0;
    TRY(cuda_check(cuda_api.device(&number, device), "cuDeviceGet", err));
    TRY(cuda_check(cuda_api.retain(&context, number), "cuDevicePrimaryCtxRetain", err));
    return cuda_check(cuda_api.set_context(context), "cuCtxSetCurrent", err);
}

void *cuda_context(void)
{
    void *context = NULL;
    return cuda_api.context && cuda_api.context(&context) == 0 ? context : NULL;
}

void cuda_use_context(void *context)
{
    if (context)
        cuda_api.set_context(context);
}
